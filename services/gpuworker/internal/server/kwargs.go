package server

import (
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/millrace/millrace/gpuworker/template"
)

// Bounds of template_kwargs, as the contract states them.
const (
	maxKwargs     = 256      // values in all
	maxKwargDepth = 8        // a value of template_kwargs itself is at depth 1
	maxKwargBytes = 64 << 10 // names and texts
)

const kwargsField = "chat.template_kwargs"

// kwargs checks the variables that a chat gives its template. It reports the first problem of each kind at most.
func (c *checker) kwargs(args *structpb.Struct) {
	for _, name := range slices.Sorted(maps.Keys(args.GetFields())) {
		if problem := template.NameProblem(name); problem != "" {
			c.add(kwargsField, "has %q, which %s", name[:min(len(name), 64)], problem)
			return
		}
	}
	count := &kwargCount{}
	if count.mapping(args, 1); count.problem != "" {
		c.add(kwargsField, "%s", count.problem)
	}
}

// kwargCount walks over values and stops at the first problem.
type kwargCount struct {
	values, bytes int
	problem       string
}

func (k *kwargCount) mapping(m *structpb.Struct, depth int) {
	for _, key := range slices.Sorted(maps.Keys(m.GetFields())) {
		k.bytes += len(key)
		if k.value(m.GetFields()[key], depth); k.problem != "" {
			return
		}
	}
}

func (k *kwargCount) value(v *structpb.Value, depth int) {
	k.values++
	switch kind := v.GetKind().(type) {
	case nil:
		k.problem = "has a value without a kind: want null, a number, a text, a truth value, a list or a mapping"
	case *structpb.Value_NumberValue:
		if math.IsNaN(kind.NumberValue) || math.IsInf(kind.NumberValue, 0) {
			k.problem = "has a number that is not finite"
		}
	case *structpb.Value_StringValue:
		k.bytes += len(kind.StringValue)
	}
	switch {
	case depth > maxKwargDepth:
		k.problem = "nests deeper than 8 levels"
	case k.values > maxKwargs:
		k.problem = "has more than 256 values in all"
	case k.bytes > maxKwargBytes:
		k.problem = "has more than 65536 bytes of names and texts"
	}
	if k.problem != "" {
		return
	}
	for _, item := range v.GetListValue().GetValues() {
		if k.value(item, depth+1); k.problem != "" {
			return
		}
	}
	k.mapping(v.GetStructValue(), depth+1)
}
