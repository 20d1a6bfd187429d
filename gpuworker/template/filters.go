package template

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nikolalohinski/gonja/v2/exec"
)

// ownFilters replace gonja's where those differ from the field's or are of no use here.
func ownFilters() *exec.FilterSet {
	return exec.NewFilterSet(map[string]exec.FilterFunction{
		"tojson":  toJSON,
		"reverse": reverse,
		"items": func(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
			return exec.AsValue(pairsOf(in))
		},
		"dictsort": func(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
			pairs := pairsOf(in)
			slices.SortStableFunc(pairs, func(a, b any) int {
				return strings.Compare(strings.ToLower(keyOf(a)), strings.ToLower(keyOf(b)))
			})
			return exec.AsValue(pairs)
		},
		// Prompts are a function of their input.
		"random": func(*exec.Evaluator, *exec.Value, *exec.VarArgs) *exec.Value {
			return exec.AsValue(fmt.Errorf("a chat template must not use random"))
		},
	})
}

func reverse(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
	switch {
	case in.IsString():
		runes := []rune(in.String())
		slices.Reverse(runes)
		return exec.AsValue(string(runes))
	case in.IsList():
		out := []any{}
		in.Iterate(func(_, _ int, item, _ *exec.Value) bool {
			out = append(out, item.Interface())
			return true
		}, func() {})
		slices.Reverse(out)
		return exec.AsValue(out)
	case in.IsError():
		return in
	}
	return exec.AsValue(fmt.Errorf("reverse takes a string or a list, not %s", in.String()))
}

// pairsOf lists the pairs of a dictionary as lists of two.
func pairsOf(in *exec.Value) []any {
	pairs := []any{}
	if in.IsDict() {
		eachPair(in, func(key, value *exec.Value) bool {
			pairs = append(pairs, []any{key.Interface(), value.Interface()})
			return true
		})
	}
	return pairs
}

func keyOf(pair any) string { return fmt.Sprint(pair.([]any)[0]) }

// isSequence is the test of that name: whatever has a length and items, which strings and dictionaries do too.
func isSequence(_ *exec.Context, in *exec.Value, _ *exec.VarArgs) (bool, error) {
	return in.IsIterable(), nil
}
