package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// copyOf names what workers must agree on to serve one stream.
type copyOf struct{ model, digest string }

// unevenContexts returns a line for each model whose workers have different contexts: the workers with the longest one alone serve what
// states no max_tokens, whatever others are idle.
func unevenContexts(workers []*pb.FleetWorker) (lines []string) {
	contexts := map[copyOf]map[uint32][]string{} // ids of workers by context
	var order []copyOf
	for _, w := range workers {
		if !heard(w) {
			continue
		}
		for _, m := range w.GetReport().GetModels() {
			if m.GetState() != pb.ModelState_MODEL_STATE_READY || m.GetContextLength() == 0 {
				continue
			}
			c := copyOf{m.GetName(), m.GetModelDigest()}
			if contexts[c] == nil {
				contexts[c] = map[uint32][]string{}
				order = append(order, c)
			}
			contexts[c][m.GetContextLength()] = append(contexts[c][m.GetContextLength()], workerName(w))
		}
	}
	for _, c := range order {
		if len(contexts[c]) < 2 {
			continue
		}
		var parts []string
		for _, n := range slices.Backward(slices.Sorted(maps.Keys(contexts[c]))) {
			parts = append(parts, fmt.Sprintf("%d on %s", n, strings.Join(contexts[c][n], ", ")))
		}
		lines = append(lines, fmt.Sprintf("model %s: contexts differ: %s; requests without max_tokens go to the longest alone: "+
			"load it with one --context everywhere", c.model, strings.Join(parts, "; ")))
	}
	return lines
}
