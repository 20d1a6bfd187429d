package sdktest

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// RequireComplete checks an answer that an official SDK has decoded against the published schema,
// from which the SDK's types are generated: every field that the schema requires was in the JSON,
// and no field that it does not have, except those of extra.
func RequireComplete(t testing.TB, answer any, extra ...string) {
	t.Helper()
	require.NotNil(t, answer)
	require.Empty(t, incomplete(reflect.ValueOf(answer), reflect.TypeOf(answer).String(), extra))
}

// incomplete returns the defects of a value of an SDK.
func incomplete(v reflect.Value, path string, extra []string) (wrong []string) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return []string{path + " has an unknown type"}
		}
		return incomplete(v.Elem(), path, extra)
	case reflect.Slice:
		for i := range v.Len() {
			wrong = append(wrong, incomplete(v.Index(i), path+"[]", extra)...)
		}
		return wrong
	case reflect.Struct:
	default:
		return nil
	}
	if union := v.MethodByName("AsAny"); union.IsValid() {
		return incomplete(union.Call(nil)[0], path, extra)
	}
	found := v.FieldByName("JSON")
	if !found.IsValid() {
		return nil
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || name == "" {
			continue
		}
		raw := found.FieldByName(f.Name).MethodByName("Raw").Call(nil)[0].String()
		switch {
		case raw == "" && (f.Tag.Get("api") == "required" || f.Tag.Get("default") != ""):
			wrong = append(wrong, path+"."+name+" is missing")
		case raw != "" && raw != "null":
			wrong = append(wrong, incomplete(v.Field(i), path+"."+name, extra)...)
		}
	}
	others := found.FieldByName("ExtraFields")
	if !others.IsValid() {
		return wrong
	}
	names := map[string]bool{}
	for _, key := range others.MapKeys() {
		names[key.String()] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !slices.Contains(extra, name) {
			wrong = append(wrong, path+"."+name+" is not in the schema")
		}
	}
	return wrong
}
