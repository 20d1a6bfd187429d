package jinja

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// jsonWriter writes as Python's json.dumps does.
type jsonWriter struct {
	*buffer
	item, key str // separators
	indent    str // a line break and one level's blanks, or empty
	ascii     bool
	sorted    bool
}

// filterToJSON is the tojson of model repositories: no HTML escapes, and every character as it is
// unless ensure_ascii is set.
func filterToJSON(r *run, v Value, a []Value) Value {
	w := &jsonWriter{buffer: r.buffer(), item: own(", "), key: own(": "), ascii: flag(a[0]), sorted: flag(a[3])}
	if given(a[1]) && a[1] != nil {
		w.item = own(",")
		blanks, ok := textOf(a[1])
		if !ok {
			blanks = r.repeatText(own(" "), max(r.whole(a[1], 0), 0))
		}
		w.indent = r.join(own("\n"), blanks)
	}
	if given(a[2]) && a[2] != nil {
		parts := r.items(a[2])
		if len(parts) != 2 {
			r.fail("tojson: separators are two strings, not %d", len(parts))
		}
		w.item, w.key = r.str(parts[0], "tojson: a separator"), r.str(parts[1], "tojson: a separator")
	}
	w.value(v, 0)
	return w.str()
}

func (w *jsonWriter) line(depth int) {
	if w.indent.text != "" {
		w.own("\n")
		for range depth {
			w.write(w.indent.slice(1, len(w.indent.text)))
		}
	}
}

func (w *jsonWriter) value(v Value, depth int) {
	switch v := v.(type) {
	case nil:
		w.own("null")
	case bool:
		w.own(strconv.FormatBool(v))
	case int:
		w.own(strconv.Itoa(v))
	case *big.Int:
		w.own(w.run.digits(v))
	case float64:
		w.own(jsonFloat(v))
	case str:
		w.string(v)
	case markup:
		w.string(v.str)
	case *List:
		w.list(v.items, depth)
	case *tuple:
		w.list(v.items, depth)
	case *Dict:
		w.dict(v, depth)
	default:
		w.run.fail("Object of type %s is not JSON serializable", typeName(v))
	}
}

func (w *jsonWriter) list(items []Value, depth int) {
	w.run.enter()
	w.own("[")
	for i, item := range items {
		if i > 0 {
			w.write(w.item)
		}
		w.line(depth + 1)
		w.value(item, depth+1)
	}
	if len(items) > 0 {
		w.line(depth)
	}
	w.own("]")
	w.run.leave()
}

func (w *jsonWriter) dict(d *Dict, depth int) {
	w.run.enter()
	w.own("{")
	entries := d.entries
	if w.sorted {
		entries = slices.Clone(entries)
		w.run.sort(entries, func(e entry) Value { return e.key }, false)
	}
	for i, e := range entries {
		if i > 0 {
			w.write(w.item)
		}
		w.line(depth + 1)
		w.name(e.key)
		w.write(w.key)
		w.value(e.value, depth+1)
	}
	if len(entries) > 0 {
		w.line(depth)
	}
	w.own("}")
	w.run.leave()
}

// name writes a key, which JSON wants to be a string.
func (w *jsonWriter) name(key Value) {
	switch k := key.(type) {
	case str:
		w.string(k)
	case markup:
		w.string(k.str)
	case nil, bool, int, *big.Int, float64:
		w.own(`"`)
		w.value(k, 0)
		w.own(`"`)
	default:
		w.run.fail("keys must be str, int, float, bool or None, not %s", typeName(key))
	}
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return floatText(f)
}

var jsonEscapes = strings.NewReplacer(`"`, `\"`, `\`, `\\`, "\n", `\n`, "\r", `\r`, "\t", `\t`, "\b", `\b`, "\f", `\f`)

func (w *jsonWriter) string(s str) {
	w.own(`"`)
	w.write(w.run.mapRuns(s, w.escape))
	w.own(`"`)
}

func (w *jsonWriter) escape(s string) string {
	s = jsonEscapes.Replace(s)
	if !strings.ContainsFunc(s, w.coded) {
		return s
	}
	var out []byte
	for _, c := range s {
		switch {
		case !w.coded(c):
			out = append(out, string(c)...)
		case c < 0x10000:
			out = fmt.Appendf(out, `\u%04x`, c)
		default:
			high, low := utf16.EncodeRune(c)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		}
	}
	return string(out)
}

// coded reports which characters are written as numeric escapes.
func (w *jsonWriter) coded(c rune) bool { return c < ' ' || w.ascii && c > '~' }
