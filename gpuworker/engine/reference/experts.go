package reference

import (
	"cmp"
	"math"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Routed is an expert that a row uses.
type Routed struct {
	Expert int
	Weight float64
}

// leastWeights is the least sum by which weights are divided.
const leastWeights = 1e-20

// Route returns the experts of a row by ascending id, from the router's logits and the choice bias, nil if
// there is none. NaN in the score of an expert or a group gives the first experts with weights of NaN.
func Route(logits, bias []float64, e *engine.Experts) []Routed {
	weights := gating(logits, e.Gating)
	scores := slices.Clone(weights)
	addTo(scores, bias)
	var ids []int
	if candidates := allowed(scores, e); candidates != nil {
		ids = best(candidates, e.Used, func(id int) float64 { return scores[id] })
	} else {
		for id := range e.Used {
			ids = append(ids, id)
			weights[id] = math.NaN()
		}
	}
	slices.Sort(ids)
	sum := 0.0
	for _, id := range ids {
		sum += weights[id]
	}
	factor := 1.0
	if e.Renorm {
		factor = 1 / max(sum, leastWeights)
	}
	if e.WeightScale != 0 {
		factor *= float64(e.WeightScale)
	}
	var out []Routed
	for _, id := range ids {
		out = append(out, Routed{id, weights[id] * factor})
	}
	return out
}

func gating(logits []float64, kind engine.Gating) []float64 {
	if kind == engine.GateSoftmax {
		return Softmax(logits)
	}
	out := make([]float64, len(logits))
	for i, v := range logits {
		out[i] = Sigmoid(v)
	}
	return out
}

// allowed returns the experts of the best groups, or all without groups. It returns nil if a score or that of a group is
// NaN.
func allowed(scores []float64, e *engine.Experts) []int {
	if slices.ContainsFunc(scores, math.IsNaN) {
		return nil
	}
	all := make([]int, e.Count)
	for i := range all {
		all[i] = i
	}
	if e.Groups == 0 {
		return all
	}
	size := e.Count / e.Groups
	groups := make([]int, e.Groups)
	for i := range groups {
		groups[i] = i
	}
	score := func(group int) float64 {
		own := slices.Clone(scores[group*size : (group+1)*size])
		slices.SortFunc(own, func(a, b float64) int { return cmp.Compare(b, a) })
		if e.GroupBestTwo && size > 1 {
			return own[0] + own[1]
		}
		return own[0]
	}
	if slices.ContainsFunc(groups, func(group int) bool { return math.IsNaN(score(group)) }) {
		return nil
	}
	var out []int
	for _, group := range best(groups, e.GroupsUsed, score) {
		out = append(out, all[group*size:(group+1)*size]...)
	}
	slices.Sort(out)
	return out
}

// best returns the n ids of the greatest scores; of equal ones the lowest ids.
func best(ids []int, n int, score func(int) float64) []int {
	sorted := slices.Clone(ids)
	slices.SortStableFunc(sorted, func(a, b int) int { return cmp.Compare(score(b), score(a)) })
	return sorted[:n]
}

// Sigmoid returns 1 / (1 + exp(-a)).
func Sigmoid(a float64) float64 { return 1 / (1 + math.Exp(-a)) }

// mixture is the branch of experts of n rows h.
func (d *Decoder) mixture(layer int, h []float64, n int) []float64 {
	out := d.chosen(layer, h, h, n)
	if d.desc.Layers[layer].MLP.Experts.SharedWidth > 0 {
		addTo(out, d.sharedExpert(layer, h, n))
	}
	return out
}

// mixtureApart is the branch of experts with norms of their own. h has the norms of the shared expert.
func (d *Decoder) mixtureApart(layer int, x, h []float64, n int) []float64 {
	routed := d.norm(x, true, engine.RoleRouterNorm, layer)
	for i := range routed {
		routed[i] /= math.Sqrt(float64(d.desc.Hidden))
	}
	out := d.norm(d.chosen(layer, routed, d.norm(x, true, engine.RoleExpertNorm, layer), n), true, engine.RoleExpertEndNorm, layer)
	addTo(out, d.norm(d.sharedExpert(layer, h, n), true, engine.RoleSharedEndNorm, layer))
	return out
}

// chosen is the weighted sum of the experts that n rows use. The router reads routed, and the experts h.
func (d *Decoder) chosen(layer int, routed, h []float64, n int) []float64 {
	e, hidden := &d.desc.Layers[layer].MLP.Experts, d.desc.Hidden
	logits := d.project(routed, n, engine.RoleRouter, e.RouterBias, engine.RoleRouterBias, layer)
	bias, scales := d.tensors[name{engine.RoleChoiceBias, layer}], d.tensors[name{engine.RoleExpertScale, layer}]
	out := make([]float64, n*hidden)
	for i := range n {
		x := h[i*hidden : (i+1)*hidden]
		for _, c := range Route(logits[i*e.Count:(i+1)*e.Count], bias, e) {
			if scales != nil {
				c.Weight *= scales[c.Expert]
			}
			for j, v := range d.expert(layer, c.Expert, x) {
				out[i*hidden+j] += c.Weight * v
			}
		}
	}
	return out
}

// expert returns what one expert returns for one row.
func (d *Decoder) expert(layer, id int, x []float64) []float64 {
	hidden, width := d.desc.Hidden, d.desc.Layers[layer].MLP.Width
	product := func(x []float64, role, bias engine.Role, in, out int) []float64 {
		y := Matmul(d.tensors[name{role, layer}][id*in*out:(id+1)*in*out], x, 1, out, in)
		if d.desc.Layers[layer].MLP.Experts.Bias {
			addTo(y, d.tensors[name{bias, layer}][id*out:(id+1)*out])
		}
		return y
	}
	gate := product(x, engine.RoleExpertGate, engine.RoleExpertGateBias, hidden, width)
	d.gated(layer, gate, product(x, engine.RoleExpertUp, engine.RoleExpertUpBias, hidden, width))
	return product(gate, engine.RoleExpertDown, engine.RoleExpertDownBias, width, hidden)
}

func (d *Decoder) sharedExpert(layer int, h []float64, n int) []float64 {
	gate := d.project(h, n, engine.RoleSharedGate, false, 0, layer)
	d.gated(layer, gate, d.project(h, n, engine.RoleSharedUp, false, 0, layer))
	out := d.project(gate, n, engine.RoleSharedDown, false, 0, layer)
	if !d.desc.Layers[layer].MLP.Experts.SharedGate {
		return out
	}
	hidden, router := d.desc.Hidden, d.tensors[name{engine.RoleSharedRouter, layer}]
	for i := range n {
		weight := Sigmoid(dot(router, h[i*hidden:(i+1)*hidden]))
		for j := range hidden {
			out[i*hidden+j] *= weight
		}
	}
	return out
}
