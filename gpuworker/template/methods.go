package template

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nikolalohinski/gonja/v2/builtins"
	"github.com/nikolalohinski/gonja/v2/exec"
)

// stringMethods are gonja's, with Python's meaning for those that chat templates use most.
func stringMethods() *exec.MethodSet[string] {
	methods := map[string]exec.Method[string]{}
	for _, name := range []string{
		"capitalize", "casefold", //nolint:misspell // Python's names
		"center", "expandtabs", //nolint:misspell // Python's names
		"format", "isalnum", "isalpha", "isascii", "isdecimal",
		"isdigit", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "join", "ljust", "lower", "partition",
		"rjust", "rpartition", "splitlines", "swapcase", "title", "upper", "zfill",
	} {
		methods[name], _ = builtins.Methods.Str.Get(name)
	}
	methods["strip"] = stripMethod(true, true)
	methods["lstrip"] = stripMethod(true, false)
	methods["rstrip"] = stripMethod(false, true)
	methods["startswith"] = affixMethod(strings.HasPrefix)
	methods["endswith"] = affixMethod(strings.HasSuffix)
	methods["split"] = splitMethod(splitLeft)
	methods["rsplit"] = splitMethod(splitRight)
	methods["removeprefix"] = cutMethod(strings.TrimPrefix)
	methods["removesuffix"] = cutMethod(strings.TrimSuffix)
	methods["count"] = searchMethod(strings.Count, false)
	methods["find"] = searchMethod(strings.Index, true)
	methods["rfind"] = searchMethod(strings.LastIndex, true)
	methods["index"] = func(self string, v *exec.Value, args *exec.VarArgs) (any, error) {
		at, err := methods["find"](self, v, args)
		if at == -1 {
			return nil, fmt.Errorf("index: the string holds no %q", argument(args, 0, "sub").String())
		}
		return at, err
	}
	methods["replace"] = func(self string, _ *exec.Value, args *exec.VarArgs) (any, error) {
		old, by, count := argument(args, 0, "old"), argument(args, 1, "new"), -1
		if old == nil || by == nil || !old.IsString() || !by.IsString() {
			return nil, fmt.Errorf("replace takes two strings and a count")
		}
		if n := argument(args, 2, "count"); n != nil && n.IsInteger() {
			count = n.Integer()
		}
		return strings.Replace(self, old.String(), by.String(), count), nil
	}
	return exec.NewMethodSet(methods)
}

func stripMethod(left, right bool) exec.Method[string] {
	return func(self string, _ *exec.Value, args *exec.VarArgs) (any, error) {
		in := unicode.IsSpace
		if v := argument(args, 0, "chars"); v != nil && !v.IsNil() {
			if !v.IsString() {
				return nil, fmt.Errorf("strip takes a string of characters, not %s", v.String())
			}
			set := v.String()
			in = func(r rune) bool { return strings.ContainsRune(set, r) }
		}
		if left {
			self = strings.TrimLeftFunc(self, in)
		}
		if right {
			self = strings.TrimRightFunc(self, in)
		}
		return self, nil
	}
}

func affixMethod(has func(s, affix string) bool) exec.Method[string] {
	return func(self string, _ *exec.Value, args *exec.VarArgs) (any, error) {
		v := argument(args, 0, "prefix")
		switch {
		case v != nil && v.IsString():
			return has(self, v.String()), nil
		case v != nil && v.IsList():
			found := false
			v.Iterate(func(_, _ int, item, _ *exec.Value) bool {
				found = has(self, item.String())
				return !found
			}, func() {})
			return found, nil
		}
		return nil, fmt.Errorf("startswith and endswith take a string or a list of strings")
	}
}

// searchMethod looks for a part of a string; a place is counted in characters. It takes no bounds.
func searchMethod(search func(s, part string) int, place bool) exec.Method[string] {
	return func(self string, _ *exec.Value, args *exec.VarArgs) (any, error) {
		part := argument(args, 0, "sub")
		if part == nil || !part.IsString() || len(args.Args)+len(args.KwArgs) != 1 {
			return nil, fmt.Errorf("count, find and index take one string")
		}
		n := search(self, part.String())
		if n > 0 && place {
			n = utf8.RuneCountInString(self[:n])
		}
		return n, nil
	}
}

func cutMethod(cut func(s, affix string) string) exec.Method[string] {
	return func(self string, _ *exec.Value, args *exec.VarArgs) (any, error) {
		if v := argument(args, 0, "prefix"); v != nil && v.IsString() {
			return cut(self, v.String()), nil
		}
		return nil, fmt.Errorf("removeprefix and removesuffix take a string")
	}
}

func splitMethod(split func(s, sep string, n int) []string) exec.Method[string] {
	return func(self string, _ *exec.Value, args *exec.VarArgs) (any, error) {
		sep, limit := "", -1
		if v := argument(args, 0, "sep"); v != nil && !v.IsNil() {
			if sep = v.String(); sep == "" || !v.IsString() {
				return nil, fmt.Errorf("split takes a separator that is a string and not empty")
			}
		}
		if v := argument(args, 1, "maxsplit"); v != nil && v.IsInteger() {
			limit = v.Integer()
		}
		out := []any{}
		for _, part := range split(self, sep, limit) {
			out = append(out, part)
		}
		return out, nil
	}
}

// splitLeft is Python's split: at most n cuts from the left, any number if n < 0; an empty sep stands for white space.
func splitLeft(s, sep string, n int) []string {
	if sep != "" {
		if n >= 0 {
			n++
		}
		return strings.SplitN(s, sep, n)
	}
	var out []string
	for s = strings.TrimSpace(s); s != ""; s = strings.TrimLeftFunc(s, unicode.IsSpace) {
		end := strings.IndexFunc(s, unicode.IsSpace)
		if end < 0 || n >= 0 && len(out) == n {
			return append(out, s)
		}
		out, s = append(out, s[:end]), s[end:]
	}
	return out
}

// splitRight is Python's rsplit.
func splitRight(s, sep string, n int) []string {
	if n < 0 {
		return splitLeft(s, sep, n)
	}
	var out []string
	for {
		if sep == "" {
			if s = strings.TrimRightFunc(s, unicode.IsSpace); s == "" {
				break
			}
		}
		cut, width := strings.LastIndex(s, sep), len(sep)
		if sep == "" {
			if cut = strings.LastIndexFunc(s, unicode.IsSpace); cut >= 0 {
				_, width = utf8.DecodeRuneInString(s[cut:])
			}
		}
		if cut < 0 || len(out) == n {
			out = append(out, s)
			break
		}
		out, s = append(out, s[cut+width:]), s[:cut]
	}
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return out
}

// dictMethods are those that read, with pairs in their order. gonja's pop, update and clear change a copy, so they are
// left out: calling them is an error instead of nothing.
func dictMethods() *exec.MethodSet[map[string]any] {
	methods := map[string]exec.Method[map[string]any]{}
	for _, name := range []string{"get", "copy"} {
		methods[name], _ = builtins.Methods.Dict.Get(name)
	}
	walk := func(pick func(key, value *exec.Value) any) exec.Method[map[string]any] {
		return func(_ map[string]any, self *exec.Value, _ *exec.VarArgs) (any, error) {
			out := []any{}
			eachPair(self, func(key, value *exec.Value) bool {
				out = append(out, pick(key, value))
				return true
			})
			return out, nil
		}
	}
	methods["keys"] = walk(func(key, _ *exec.Value) any { return key.Interface() })
	methods["values"] = walk(func(_, value *exec.Value) any { return value.Interface() })
	methods["items"] = walk(func(key, value *exec.Value) any { return []any{key.Interface(), value.Interface()} })
	return exec.NewMethodSet(methods)
}
