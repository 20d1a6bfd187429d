package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// entry is a tensor as the header describes it, before entries are compared.
type entry struct {
	Tensor
	begin, end int64 // bytes from the end of the header
	position   int64 // offset in the file of its description
}

// parseHeader parses {NAME: {"dtype": TYPE, "shape": [LENGTH...], "data_offsets": [BEGIN, END]}...,
// "__metadata__": {KEY: TEXT...}} and no other JSON.
func parseHeader(header []byte) (map[string]string, []entry, error) {
	if at := invalidUTF8(header); at >= 0 {
		return nil, nil, malformed(lengthBytes+int64(at), "the header is not UTF-8: %s", saveAgain)
	}
	if !bytes.HasPrefix(header, []byte("{")) {
		return nil, nil, malformed(lengthBytes, "the header does not begin with '{': check that the file is one of safetensors")
	}
	r := &reader{dec: json.NewDecoder(bytes.NewReader(header))}
	r.dec.UseNumber()
	var metadata map[string]string
	var entries []entry
	err := r.object("the header", func(name string) (err error) {
		if name == metadataName {
			metadata, err = r.texts()
			return err
		}
		e, err := r.entry(name)
		entries = append(entries, e)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	if rest := header[r.dec.InputOffset():]; strings.Trim(string(rest), " ") != "" {
		return nil, nil, malformed(r.offset(), "the header continues after its last brace: %s", saveAgain)
	}
	return metadata, entries, nil
}

// invalidUTF8 returns the offset of the first byte that is not UTF-8, or -1.
func invalidUTF8(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

// reader reads JSON token by token. Its depth is that of its methods, so nesting costs nothing.
type reader struct{ dec *json.Decoder }

// offset returns the offset in the file of the end of the last token.
func (r *reader) offset() int64 { return lengthBytes + r.dec.InputOffset() }

func (r *reader) token() (json.Token, error) {
	t, err := r.dec.Token()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, malformed(r.offset(), "the header ends amid its dictionary: %s", copyAgain)
	}
	if err != nil {
		return nil, malformed(r.offset(), "the header is not JSON (%v): %s", err, saveAgain)
	}
	return t, nil
}

// delim reads a bracket.
func (r *reader) delim(want json.Delim, what string) error {
	t, err := r.token()
	if err == nil && t != want {
		err = malformed(r.offset(), "%s is no %s: %s", what, map[json.Delim]string{'{': "dictionary", '[': "list"}[want], saveAgain)
	}
	return err
}

// text reads a string. It refuses half a surrogate pair, which JSON can express.
func (r *reader) text(what string) (string, error) {
	t, err := r.token()
	if err != nil {
		return "", err
	}
	s, ok := t.(string)
	if !ok || strings.ContainsRune(s, utf8.RuneError) {
		return "", malformed(r.offset(), "%s is no text: %s", what, saveAgain)
	}
	return s, nil
}

// integer reads a number of 0 or more that is written in digits.
func (r *reader) integer(what string) (int64, error) {
	t, err := r.token()
	if err != nil {
		return 0, err
	}
	number, _ := t.(json.Number)
	n, err := strconv.ParseInt(number.String(), 10, 64)
	if err != nil || strings.HasPrefix(number.String(), "-") {
		return 0, malformed(r.offset(), "%s has something else than an integer from 0 to 2^63-1: %s", what, saveAgain)
	}
	return n, nil
}

// object reads a dictionary, and calls value to read the value of each key. It refuses duplicate
// keys.
func (r *reader) object(what string, value func(key string) error) error {
	if err := r.delim('{', what); err != nil {
		return err
	}
	seen := map[string]bool{}
	for r.dec.More() {
		key, err := r.text("a key")
		if err != nil {
			return err
		}
		if seen[key] {
			return malformed(r.offset(), "%s has %q twice: %s", what, key, saveAgain)
		}
		seen[key] = true
		if err := value(key); err != nil {
			return err
		}
	}
	_, err := r.token()
	return err
}

// integers reads a list of at most most integers.
func (r *reader) integers(what string, most int) ([]int64, error) {
	if err := r.delim('[', what); err != nil {
		return nil, err
	}
	list := []int64{}
	for r.dec.More() {
		if len(list) == most {
			return nil, unsupported(r.offset(), "%s has more than %d numbers: %s", what, most, saveAgain)
		}
		n, err := r.integer(what)
		if err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	_, err := r.token()
	return list, err
}

func (r *reader) texts() (map[string]string, error) {
	texts := map[string]string{}
	err := r.object(metadataName, func(key string) (err error) {
		texts[key], err = r.text(fmt.Sprintf("what %s has for %q", metadataName, key))
		return err
	})
	return texts, err
}

func (r *reader) entry(name string) (entry, error) {
	e := entry{Tensor: Tensor{Name: name}, position: r.offset()}
	what := fmt.Sprintf("tensor %q", name)
	if name == "" {
		return e, unsupported(r.offset(), "a tensor has no name: %s", saveAgain)
	}
	var offsets []int64
	err := r.object(what, func(key string) (err error) {
		switch key {
		case "dtype":
			e.Type, err = r.dtype(what)
		case "shape":
			e.Shape, err = r.integers("the shape of "+what, MaxRank)
		case "data_offsets":
			offsets, err = r.integers("data_offsets of "+what, 2)
		default:
			err = malformed(r.offset(), "%s has the unknown key %q: %s", what, key, saveAgain)
		}
		return err
	})
	if err == nil && (e.Type == 0 || e.Shape == nil || len(offsets) != 2) {
		err = malformed(r.offset(), "%s lacks dtype, shape or one of two data_offsets: %s", what, saveAgain)
	}
	if err == nil {
		e.begin, e.end = offsets[0], offsets[1]
	}
	return e, err
}

func (r *reader) dtype(what string) (Type, error) {
	name, err := r.text("dtype of " + what)
	if err != nil {
		return 0, err
	}
	t := typeNamed(name)
	if t == 0 {
		return 0, unsupported(r.offset(), "%s is of type %q, which is none of %s: convert it", what, name, strings.Join(typeNames[1:], ", "))
	}
	return t, nil
}
