package tools

import (
	"strings"

	"github.com/millrace/millrace/gpuworker/guide"
)

// pairsState is how far an object of Gemma's notation has got: {key:value,key:value} with bare keys, and texts
// between quotes that are tokens of their own.
type pairsState struct {
	open  []byte // brackets that are open
	key   bool   // whether a key is next, or has begun
	keyed strings.Builder
	text  bool // inside a text
}

// pairsText writes an object of Gemma's notation as JSON, up to its end.
func (p *Parser) pairsText(s *state, last bool) {
	d, quote := &p.pairs, p.machine.quote
	for p.buf != "" {
		if strings.HasPrefix(p.buf, quote) {
			p.buf = p.buf[len(quote):]
			d.text = !d.text
			p.emitArguments(`"`)
			continue
		}
		if strings.HasPrefix(quote, p.buf) && !last {
			return
		}
		if d.text {
			end := strings.IndexByte(p.buf[1:], quote[0]) + 1
			if end == 0 {
				end = len(p.buf)
			}
			p.emitArguments(escapeJSON(p.printable(p.buf[:end])))
			p.buf = p.buf[end:]
			continue
		}
		c := p.buf[0]
		if c == guide.Control[0] { // a control token has no meaning here
			if rest := p.printable(p.buf); len(rest) < len(p.buf) {
				p.buf = rest
				continue
			}
		}
		p.buf = p.buf[1:]
		if p.pairsByte(c) {
			p.at, p.begun = s.to, false
			return
		}
	}
}

// pairsByte adds a byte outside texts, and reports whether it ends the object.
func (p *Parser) pairsByte(c byte) (end bool) {
	d := &p.pairs
	inObject := len(d.open) > 0 && d.open[len(d.open)-1] == '{'
	switch {
	case c == '{' || c == '[':
		d.open = append(d.open, c)
		d.key = c == '{'
	case c == '}' || c == ']':
		d.key = false
		if len(d.open) > 0 {
			d.open = d.open[:len(d.open)-1]
		}
	case c == ',':
		d.key = inObject
	case c == ':' && d.key:
		p.emitArguments(quoteJSON(d.keyed.String()))
		d.key = false
		d.keyed.Reset()
	case d.key:
		if d.keyed.Len() < maxName {
			d.keyed.WriteByte(c)
		}
		return false
	}
	p.emitArguments(string([]byte{c}))
	return len(d.open) == 0
}
