package strictjson

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/millrace/millrace/services/internal/ratelog"
	"github.com/millrace/millrace/services/internal/reason"
)

// Error says why a text was refused.
type Error struct {
	// Path is the JSON path of the value, for example messages[3].content. "" is the whole text.
	Path string
	// Reason is MalformedMessage, UnknownField or InvalidArgument of package reason.
	Reason string
	// Message continues the path as a sentence.
	Message string
}

func (e *Error) Error() string {
	if e.Path == "" {
		return e.Message
	}
	return e.Path + " " + e.Message
}

// Errorf returns an error about the current value. The text continues its path as a sentence.
func (d *Decoder) Errorf(format string, args ...any) error {
	return &Error{d.Path(), reason.InvalidArgument, fmt.Sprintf(format, args...)}
}

// malformed returns an error about the text at the current position, which is not JSON.
func (d *Decoder) malformed(format string, args ...any) error {
	message := fmt.Sprintf("at byte %d the body is not JSON: "+format, append([]any{d.pos}, args...)...)
	return &Error{"", reason.MalformedMessage, message}
}

// segment is one step of a path: a field's name, or an element's index if index is not negative.
type segment struct {
	name  string
	index int
}

// maxName bounds the bytes of a name in a path, which a caller may choose freely.
const maxName = 64

// Path returns the path of the current value.
func (d *Decoder) Path() string {
	var out strings.Builder
	for _, s := range d.path {
		switch {
		case out.Len() > ratelog.MaxText:
		case s.index >= 0:
			out.WriteString("[" + strconv.Itoa(s.index) + "]")
		case plain(s.name):
			if out.Len() > 0 {
				out.WriteByte('.')
			}
			out.WriteString(s.name)
		default:
			out.WriteString("[" + strconv.Quote(clip(s.name)) + "]")
		}
	}
	return out.String()
}

// plain reports whether a name needs no quotes in a path.
func plain(name string) bool {
	for i := range len(name) {
		c := name[i]
		if c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return name != "" && len(name) <= maxName
}

func clip(text string) string { return ratelog.ClipAt(text, maxName) }

// field is a field of a struct type.
type field struct {
	index  []int
	number uint // of its type's fields; below 256
}

// fieldCache holds the result of fieldsOf by type.
var fieldCache sync.Map

// fieldsOf returns the fields of a struct type, those of embedded structs included, by JSON name.
func fieldsOf(t reflect.Type) map[string]field {
	if cached, ok := fieldCache.Load(t); ok {
		return cached.(map[string]field)
	}
	fields := map[string]field{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || name == "" || name == "-" {
			continue
		}
		fields[name] = field{f.Index, uint(len(fields))}
	}
	fieldCache.Store(t, fields)
	return fields
}
