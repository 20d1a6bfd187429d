package guide

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// jsonValue is a value of a JSON text. Unlike encoding/json's it keeps the order of an object's keys,
// the digits of numbers, and where it is.
type jsonValue struct {
	path   string // a JSON pointer: #/properties/a
	kind   jsonKind
	truth  bool
	text   string // of a string, or the digits of a number
	items  []*jsonValue
	keys   []string
	fields map[string]*jsonValue
}

type jsonKind uint8

const (
	jsonNull jsonKind = iota
	jsonBool
	jsonNumber
	jsonString
	jsonArray
	jsonObject
)

// maxValues bounds the values of a JSON source.
const maxValues = 1 << 16

// jsonReader reads a JSON text.
type jsonReader struct {
	d      *json.Decoder
	values int
}

// parseJSON reads the only value of a text.
func (b *builder) parseJSON(source string) *jsonValue {
	r := &jsonReader{d: json.NewDecoder(strings.NewReader(source))}
	r.d.UseNumber()
	v, err := r.value("#", 0)
	if err == nil {
		if _, more := r.d.Token(); !errors.Is(more, io.EOF) {
			err = &Error{Kind: ErrSyntax, Path: "#", Problem: "something follows the value"}
		}
	}
	var problem *Error
	switch {
	case err == nil:
		return v
	case errors.As(err, &problem):
		b.failAt(problem.Path, problem.Kind, "%s", problem.Problem)
	default:
		b.failAt("#", ErrSyntax, "it is not JSON: %v", err)
	}
	return nil
}

func (r *jsonReader) value(path string, depth int) (*jsonValue, error) {
	t, err := r.d.Token()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	if r.values++; r.values > maxValues {
		return nil, &Error{Kind: ErrLimit, Path: path, Problem: fmt.Sprintf("it has more than %d values", maxValues)}
	}
	if depth > maxNested {
		return nil, &Error{Kind: ErrLimit, Path: path, Problem: fmt.Sprintf("it nests deeper than %d levels", maxNested)}
	}
	v := &jsonValue{path: path}
	switch t := t.(type) {
	case nil:
	case bool:
		v.kind, v.truth = jsonBool, t
	case json.Number:
		v.kind, v.text = jsonNumber, t.String()
	case string:
		v.kind, v.text = jsonString, t
	case json.Delim:
		if t == '[' {
			return v, r.array(v, depth)
		}
		return v, r.object(v, depth)
	}
	return v, nil
}

func (r *jsonReader) array(v *jsonValue, depth int) error {
	v.kind = jsonArray
	for r.d.More() {
		item, err := r.value(Pointer(v.path, strconv.Itoa(len(v.items))), depth+1)
		if err != nil {
			return err
		}
		v.items = append(v.items, item)
	}
	_, err := r.d.Token()
	return err
}

func (r *jsonReader) object(v *jsonValue, depth int) error {
	v.kind, v.fields = jsonObject, map[string]*jsonValue{}
	for r.d.More() {
		t, err := r.d.Token()
		if err != nil {
			return err
		}
		key, _ := t.(string) // the decoder gives nothing else for a key
		path := Pointer(v.path, key)
		if v.fields[key] != nil {
			return &Error{Kind: ErrSyntax, Path: path, Problem: "the object has the key twice"}
		}
		field, err := r.value(path, depth+1)
		if err != nil {
			return err
		}
		v.keys, v.fields[key] = append(v.keys, key), field
	}
	_, err := r.d.Token()
	return err
}

var (
	pointerEscape   = strings.NewReplacer("~", "~0", "/", "~1")
	pointerUnescape = strings.NewReplacer("~1", "/", "~0", "~")
)

// maxPath bounds a JSON pointer. Each value has one, so without a bound a long key would count once for each value
// below it.
const maxPath = 512

// cut ends a pointer or a sentence that is too long.
const cut = "…"

// Pointer returns the JSON pointer of a member or an item of the value at path. One that is too long ends in cut, as
// do those of all values below it.
func Pointer(path, key string) string {
	if strings.HasSuffix(path, cut) {
		return path
	}
	if room := maxPath - len(path) - 1; len(key) > room {
		return path + "/" + short(pointerEscape.Replace(short(key, room)), room)
	}
	return short(path+"/"+pointerEscape.Replace(key), maxPath)
}

// short returns the beginning of a text that is longer than most bytes, with cut behind it.
func short(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:max(most, 0)], "") + cut
}

// at returns the value that a JSON pointer without its # names, or nil.
func (v *jsonValue) at(pointer string) *jsonValue {
	if pointer == "" {
		return v
	}
	for part := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		part = pointerUnescape.Replace(part)
		switch v.kind {
		case jsonObject:
			v = v.fields[part]
		case jsonArray:
			i, err := strconv.Atoi(part)
			if err != nil || i < 0 || i >= len(v.items) || strconv.Itoa(i) != part {
				return nil
			}
			v = v.items[i]
		default:
			return nil
		}
		if v == nil {
			return nil
		}
	}
	return v
}

// key returns a text that two values share if they are equal as JSON Schema compares them. Numbers of
// too many digits share one.
func (v *jsonValue) key() string { return string(v.appendKey(nil)) }

func (v *jsonValue) appendKey(to []byte) []byte {
	switch v.kind {
	case jsonNull:
		return append(to, 'n')
	case jsonBool:
		return strconv.AppendBool(to, v.truth)
	case jsonString:
		return strconv.AppendQuote(to, v.text)
	case jsonNumber:
		d, ok := parseDecimal(v.text)
		if !ok {
			return append(to, '#')
		}
		if d.negative {
			to = append(to, '-')
		}
		return append(append(append(to, d.integer...), '.'), d.fraction...)
	case jsonArray:
		to = append(to, '[')
		for _, item := range v.items {
			to = append(item.appendKey(to), ',')
		}
		return append(to, ']')
	default:
		to = append(to, '{')
		for _, k := range slices.Sorted(slices.Values(v.keys)) {
			to = strconv.AppendQuote(to, k)
			to = append(v.fields[k].appendKey(append(to, ':')), ',')
		}
		return append(to, '}')
	}
}
