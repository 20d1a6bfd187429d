package template

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"

	"github.com/nikolalohinski/gonja/v2/exec"
)

// toJSON is the field's tojson: Python's json.dumps with ensure_ascii off, keys in their order and no HTML escapes.
func toJSON(_ *exec.Evaluator, in *exec.Value, args *exec.VarArgs) *exec.Value {
	if in.IsError() {
		return in
	}
	w := &jsonWriter{item: ", ", key: ": "}
	if v := argument(args, 0, "ensure_ascii"); v != nil {
		// gonja's own order has the indent first; an integer there means that.
		if v.IsBool() {
			w.ascii = v.Bool()
		} else if v.IsInteger() {
			w.setIndent(v)
		}
	}
	if v := argument(args, 1, "indent"); v != nil && !v.IsNil() {
		w.setIndent(v)
	}
	if v := argument(args, 2, "separators"); v != nil && v.IsList() && v.Len() == 2 {
		w.item, w.key = v.Index(0).String(), v.Index(1).String()
	}
	if err := w.value(in, 0); err != nil {
		return exec.AsValue(fmt.Errorf("tojson: %w", err))
	}
	return exec.AsSafeValue(w.String())
}

func argument(args *exec.VarArgs, i int, name string) *exec.Value {
	if v, ok := args.KwArgs[name]; ok {
		return v
	}
	if i < len(args.Args) {
		return args.Args[i]
	}
	return nil
}

type jsonWriter struct {
	strings.Builder
	item, key string // separators
	indent    string
	ascii     bool
}

func (w *jsonWriter) setIndent(v *exec.Value) {
	w.item = ","
	if v.IsString() {
		w.indent = "\n" + v.String()
		return
	}
	w.indent = "\n" + strings.Repeat(" ", min(max(v.Integer(), 0), 64))
}

func (w *jsonWriter) line(depth int) {
	if w.indent != "" {
		w.WriteByte('\n')
		for range depth {
			w.WriteString(w.indent[1:])
		}
	}
}

func (w *jsonWriter) value(v *exec.Value, depth int) error {
	switch {
	case depth > 200:
		return fmt.Errorf("nested more than 200 deep")
	case v == nil || v.IsNil():
		w.WriteString("null")
	case v.IsError():
		return v
	case v.IsBool():
		w.WriteString(strconv.FormatBool(v.Bool()))
	case v.IsInteger():
		w.WriteString(strconv.Itoa(v.Integer()))
	case v.IsFloat():
		w.WriteString(pythonFloat(v.Float()))
	case v.IsString():
		w.text(v.String())
	case v.IsList():
		return w.list(v, depth)
	case v.IsDict():
		return w.dict(v, depth)
	default:
		return fmt.Errorf("%T has no JSON form", v.Interface())
	}
	return nil
}

func (w *jsonWriter) list(v *exec.Value, depth int) (err error) {
	w.WriteByte('[')
	n := 0
	v.Iterate(func(i, _ int, item, _ *exec.Value) bool {
		if n++; i > 0 {
			w.WriteString(w.item)
		}
		w.line(depth + 1)
		err = w.value(item, depth+1)
		return err == nil
	}, func() {})
	if n > 0 {
		w.line(depth)
	}
	w.WriteByte(']')
	return err
}

func (w *jsonWriter) dict(v *exec.Value, depth int) (err error) {
	w.WriteByte('{')
	n := 0
	eachPair(v, func(key, value *exec.Value) bool {
		if n++; n > 1 {
			w.WriteString(w.item)
		}
		w.line(depth + 1)
		w.text(key.String())
		w.WriteString(w.key)
		err = w.value(value, depth+1)
		return err == nil
	})
	if n > 0 {
		w.line(depth)
	}
	w.WriteByte('}')
	return err
}

// eachPair walks a dictionary in its order; those made by Go maps have that of their keys.
func eachPair(v *exec.Value, f func(key, value *exec.Value) bool) {
	var pairs []*exec.Pair
	switch d := v.Interface().(type) {
	case *exec.Dict:
		pairs = d.Pairs
	case exec.Dict:
		pairs = d.Pairs
	default:
		v.IterateOrder(func(_, _ int, key, value *exec.Value) bool { return f(key, value) }, func() {}, false, true, true)
	}
	for _, p := range pairs {
		if !f(p.Key, p.Value) {
			return
		}
	}
}

func (w *jsonWriter) text(s string) {
	w.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			w.WriteByte('\\')
			w.WriteRune(r)
		case r == '\n':
			w.WriteString(`\n`)
		case r == '\r':
			w.WriteString(`\r`)
		case r == '\t':
			w.WriteString(`\t`)
		case r == '\b':
			w.WriteString(`\b`)
		case r == '\f':
			w.WriteString(`\f`)
		case r < ' ' || w.ascii && r > '~' && r < 0x10000:
			fmt.Fprintf(w, `\u%04x`, r)
		case w.ascii && r >= 0x10000:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(w, `\u%04x\u%04x`, hi, lo)
		default:
			w.WriteRune(r)
		}
	}
	w.WriteByte('"')
}

func pythonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}
