package template

import (
	"maps"
	"math"
	"regexp"
	"slices"

	"github.com/millrace/millrace/gpuworker/template/jinja"
)

// reserved are names that a template already has, or that the language reserves.
var reserved = map[string]bool{
	"messages": true, "tools": true, "documents": true, "add_generation_prompt": true, "bos_token": true, "eos_token": true,
	"strftime_now": true, "loop": true, "self": true, "super": true, "caller": true, "varargs": true, "kwargs": true,
	"true": true, "false": true, "none": true, "True": true, "False": true, "None": true,
	"and": true, "or": true, "not": true, "in": true, "is": true, "if": true, "else": true,
}

// maxName is the longest name of a variable in bytes.
const maxName = 64

var namePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// NameProblem explains why a name is invalid in Input.Variables; "" if it is valid.
func NameProblem(name string) string {
	switch {
	case len(name) > maxName:
		return "is longer than 64 bytes"
	case !namePattern.MatchString(name):
		return "is no name of the template language: want letters, digits and underscores, a digit not first"
	case reserved[name] || jinja.IsGlobal(name):
		return "is a name that the template has already"
	}
	return ""
}

// maxWhole is the magnitude up to which every whole number is an exact float64.
const maxWhole = 1 << 53

// variable converts a decoded JSON value into a template value. Mapping entries are in byte order
// of their keys. All text in it is the caller's.
func variable(v any) jinja.Value {
	switch v := v.(type) {
	case float64:
		if v == math.Trunc(v) && math.Abs(v) <= maxWhole {
			return int(v)
		}
	case []any:
		items := make([]jinja.Value, len(v))
		for i, item := range v {
			items[i] = variable(item)
		}
		return jinja.NewList(items...)
	case map[string]any:
		var pairs []jinja.Value
		for _, key := range slices.Sorted(maps.Keys(v)) {
			pairs = append(pairs, key, variable(v[key]))
		}
		return jinja.NewDict(pairs...)
	}
	return v
}
