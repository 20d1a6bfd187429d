package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// DecodeOptions control how ids become text. The zero value decodes a whole text.
type DecodeOptions struct {
	// ShowSpecial writes control and unknown tokens by name. Otherwise they become nothing.
	ShowSpecial bool
	// Continues states that the ids follow earlier text, so that a leading space belongs to the
	// text. Otherwise, if Encode puts a space before every text, Decode removes it.
	Continues bool
}

// Decode returns the text of ids as valid UTF-8. It returns ErrTokenID for an id outside the
// vocabulary.
func (t *Tokenizer) Decode(ids []int32, opts DecodeOptions) (string, error) {
	d := t.NewDecoder(opts)
	var out strings.Builder
	for i, id := range ids {
		text, err := d.Push(id)
		if err != nil {
			return "", fmt.Errorf("decode position %d: %w", i, err)
		}
		out.WriteString(text)
	}
	out.WriteString(d.Flush())
	return out.String(), nil
}

// Decoder turns ids into text one at a time. The text that it has returned after some ids depends
// on those ids and the options alone, and the pieces together equal Decode. It belongs to one
// goroutine.
type Decoder struct {
	tokenizer *Tokenizer
	opts      DecodeOptions
	pending   []byte // an incomplete character; at most 3 bytes between calls
	unspace   bool   // the next byte of text is the space that Encode added
}

// NewDecoder returns a decoder at the start of a text.
func (t *Tokenizer) NewDecoder(opts DecodeOptions) *Decoder {
	return &Decoder{tokenizer: t, opts: opts, unspace: t.spaced && !opts.Continues}
}

// Push adds an id and returns the text that it completes: valid UTF-8, often empty. Bytes that can
// never become a character turn into U+FFFD, one for each maximal subpart. An id outside the
// vocabulary changes nothing and returns ErrTokenID.
func (d *Decoder) Push(id int32) (string, error) {
	t := d.tokenizer
	piece, ok := t.Piece(id)
	if !ok {
		return "", fmt.Errorf("token %d, want 0 to %d: %w", id, t.VocabSize()-1, ErrTokenID)
	}
	if t.IsSpecial(id) {
		if !d.opts.ShowSpecial {
			return "", nil
		}
	} else if d.unspace && len(piece) > 0 {
		d.unspace = false
		if piece[0] == ' ' && t.vocab.kinds[id] != KindUserDefined {
			piece = piece[1:]
		}
	}
	if len(d.pending) == 0 && utf8.Valid(piece) {
		return string(piece), nil
	}
	d.pending = append(d.pending, piece...)
	return d.drain(false), nil
}

// Flush ends the text. It returns U+FFFD for an incomplete character, else nothing. The decoder is
// then at the start of a text again.
func (d *Decoder) Flush() string {
	text := d.drain(true)
	d.unspace = d.tokenizer.spaced && !d.opts.Continues
	return text
}

// drain removes the complete text from pending.
func (d *Decoder) drain(all bool) string {
	var out strings.Builder
	p := d.pending
	for len(p) > 0 {
		if !all && !utf8.FullRune(p) {
			break
		}
		r, n := utf8.DecodeRune(p)
		if r == utf8.RuneError && n == 1 {
			n = maximalSubpart(p)
		}
		out.WriteRune(r)
		p = p[n:]
	}
	d.pending = append(d.pending[:0], p...)
	return out.String()
}

// maximalSubpart returns the length of the longest prefix of p that starts a character, at least 1.
// p must not start with a complete one.
func maximalSubpart(p []byte) int {
	lo, hi, want := byte(0x80), byte(0xBF), 0
	switch c := p[0]; {
	case c >= 0xC2 && c <= 0xDF:
		want = 1
	case c >= 0xE0 && c <= 0xEF:
		want = 2
		if c == 0xE0 {
			lo = 0xA0
		} else if c == 0xED {
			hi = 0x9F
		}
	case c >= 0xF0 && c <= 0xF4:
		want = 3
		if c == 0xF0 {
			lo = 0x90
		} else if c == 0xF4 {
			hi = 0x8F
		}
	}
	n := 1
	for n <= want && n < len(p) && p[n] >= lo && p[n] <= hi {
		n, lo, hi = n+1, 0x80, 0xBF
	}
	return n
}
