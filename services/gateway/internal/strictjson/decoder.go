package strictjson

import (
	"reflect"

	"github.com/millrace/millrace/services/internal/reason"
)

// Limits of a value, which together with the bound of its bytes bound the memory that it takes.
const (
	// MaxDepth is the deepest nesting of objects and arrays.
	MaxDepth = 64
	// MaxElements bounds the elements of an array and the fields of a map. An array of numbers is
	// bounded by the bytes of the request only.
	MaxElements = 1 << 14
)

// Kind is the kind of a JSON value.
type Kind string

// Kinds.
const (
	Null   Kind = "null"
	Bool   Kind = "a boolean"
	Number Kind = "a number"
	String Kind = "a string"
	Array  Kind = "an array"
	Object Kind = "an object"
)

// Value is a type that decodes itself, for example because it accepts several kinds. DecodeJSON
// must decode exactly one value. It is not called for null.
type Value interface {
	DecodeJSON(d *Decoder) error
}

// Raw is a valid JSON value that is not decoded. It is a part of the decoded bytes.
type Raw []byte

// Decoder decodes one JSON text.
type Decoder struct {
	data    []byte
	pos     int
	depth   int
	path    []segment
	unknown func(path string) bool
}

// Decode decodes data, which must be one JSON object, into the struct that out points to. unknown
// reports whether an unknown field is skipped; if it returns false or is nil, the field is refused.
// Strings are copies; a Raw is a part of data. The error is an *Error.
func Decode(data []byte, out any, unknown func(path string) bool) error {
	d := &Decoder{data: data, unknown: unknown}
	if kind := d.Kind(); kind != Object {
		if kind == "" {
			return d.malformed("a JSON object is expected")
		}
		return d.Errorf("the body is %s: send a JSON object", kind)
	}
	if err := d.Decode(out); err != nil {
		return err
	}
	d.space()
	if d.pos != len(d.data) {
		return d.malformed("more text follows the JSON object")
	}
	return nil
}

// Kind returns the kind of the next value, or "" if no value follows.
func (d *Decoder) Kind() Kind {
	d.space()
	switch c := d.peek(); c {
	case 'n':
		return Null
	case 't', 'f':
		return Bool
	case '"':
		return String
	case '[':
		return Array
	case '{':
		return Object
	default:
		if c == '-' || c >= '0' && c <= '9' {
			return Number
		}
		return ""
	}
}

// Decode decodes the next value into what out points to.
func (d *Decoder) Decode(out any) error {
	return d.value(reflect.ValueOf(out).Elem(), false)
}

// Elements decodes the next value, an array: element must decode its i-th element.
func (d *Decoder) Elements(element func(i int) error) error { return d.array(element) }

// space skips white space.
func (d *Decoder) space() {
	for d.pos < len(d.data) {
		switch d.data[d.pos] {
		case ' ', '\t', '\n', '\r':
			d.pos++
		default:
			return
		}
	}
}

// peek returns the next byte, or 0 at the end.
func (d *Decoder) peek() byte {
	if d.pos < len(d.data) {
		return d.data[d.pos]
	}
	return 0
}

// value decodes the next value into v. nullable: null leaves v as it is.
func (d *Decoder) value(v reflect.Value, nullable bool) error {
	if nullable && d.Kind() == Null {
		return d.literal("null")
	}
	if own, ok := v.Addr().Interface().(Value); ok {
		return own.DecodeJSON(d)
	}
	if v.Type() == reflect.TypeFor[Raw]() {
		from := d.start()
		if err := d.skip(); err != nil {
			return err
		}
		v.SetBytes(d.data[from:d.pos:d.pos])
		return nil
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return d.value(v.Elem(), false)
	case reflect.Struct:
		return d.structure(v)
	case reflect.Slice:
		return d.slice(v)
	case reflect.Map:
		return d.mapping(v)
	case reflect.String:
		s, err := d.text()
		v.SetString(s)
		return err
	case reflect.Bool:
		return d.boolean(v)
	case reflect.Float64, reflect.Float32, reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64:
		return d.number(v)
	default:
		panic("strictjson: no decoder of " + v.Type().String())
	}
}

// structure decodes an object into a struct.
func (d *Decoder) structure(v reflect.Value) error {
	known := fieldsOf(v.Type())
	var seen [4]uint64
	return d.object(func(key string) error {
		f, ok := known[key]
		if !ok {
			if d.unknown != nil && d.unknown(d.Path()) {
				return d.skip()
			}
			return &Error{d.Path(), reason.UnknownField, "is not a field of this request: leave it out"}
		}
		if seen[f.number/64]&(1<<(f.number%64)) != 0 {
			return d.Errorf("occurs twice: send it once")
		}
		seen[f.number/64] |= 1 << (f.number % 64)
		return d.value(v.FieldByIndex(f.index), true)
	})
}

// mapping decodes an object into a map with string keys.
func (d *Decoder) mapping(v reflect.Value) error {
	m := reflect.MakeMap(v.Type())
	err := d.object(func(key string) error {
		k := reflect.ValueOf(key)
		if m.MapIndex(k).IsValid() {
			return d.Errorf("occurs twice: send it once")
		}
		if m.Len() == MaxElements {
			return d.Errorf("is one field too many: at most %d are accepted", MaxElements)
		}
		element := reflect.New(v.Type().Elem()).Elem()
		if err := d.value(element, false); err != nil {
			return err
		}
		m.SetMapIndex(k, element)
		return nil
	})
	v.Set(m)
	return err
}

// slice decodes an array.
func (d *Decoder) slice(v reflect.Value) error {
	numbers := false
	switch v.Type().Elem().Kind() {
	case reflect.Float64, reflect.Float32, reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64:
		numbers = true
	default: // other elements are bounded by their number
	}
	v.Set(reflect.MakeSlice(v.Type(), 0, 0)) // [] is not unset
	return d.array(func(i int) error {
		if !numbers && i == MaxElements {
			return d.Errorf("is one element too many: at most %d are accepted", MaxElements)
		}
		v.Grow(1)
		v.SetLen(i + 1)
		return d.value(v.Index(i), false)
	})
}

// skip checks the next value and ignores it.
func (d *Decoder) skip() error {
	switch d.Kind() {
	case Object:
		seen := map[string]bool{}
		return d.object(func(key string) error {
			if seen[key] {
				return d.Errorf("occurs twice: send it once")
			}
			seen[key] = true
			return d.skip()
		})
	case Array:
		return d.array(func(int) error { return d.skip() })
	case String:
		_, err := d.text()
		return err
	case Number:
		_, err := d.numeral()
		return err
	case Bool:
		if d.peek() == 't' {
			return d.literal("true")
		}
		return d.literal("false")
	case Null:
		return d.literal("null")
	}
	return d.malformed("a value is missing")
}
