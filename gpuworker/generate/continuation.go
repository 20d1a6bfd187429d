package generate

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
)

// continuation is the text side of one sequence: ids in, text and stops out.
type continuation struct {
	request *Request
	index   int
	decoder TextDecoder // nil: no text
	// special decodes with control tokens written out; used only for an end token that the caller wants to see.
	special TextDecoder
	matcher stopMatcher
	count   int // tokens taken
}

// take adds generated tokens. It returns what to deliver and, when a stop string completes, the stop; tokens after the
// one that completes it are dropped.
func (c *continuation) take(rows []engine.RowResult) (out Tokens, matched string, err error) {
	out = Tokens{OutputIndex: c.index, TokenIndex: c.count}
	for i := range rows {
		c.count++
		out.Rows = rows[:i+1]
		if c.decoder == nil {
			continue
		}
		var show string
		if show, matched, err = c.text(rows[i].Token); err != nil {
			return out, "", fmt.Errorf("detokenise token %d of output %d: %w", c.count-1, c.index, err)
		}
		out.Text += show
		if matched != "" {
			break
		}
	}
	return out, matched, nil
}

func (c *continuation) text(id int32) (show, matched string, err error) {
	if slices.Contains(c.request.StopIDs, id) {
		if !c.request.IncludeStop {
			return "", "", nil
		}
		text, err := c.special.Push(id)
		return c.matcher.pass(c.decoder.Flush() + text), "", err
	}
	text, err := c.decoder.Push(id)
	if err != nil {
		return "", "", err
	}
	if c.count <= int(c.request.Params.MinTokens) {
		return c.matcher.pass(text), "", nil
	}
	show, matched = c.matcher.push(text)
	return show, matched, nil
}

// rest is the text still held back when the sequence ends without a stop string.
func (c *continuation) rest() Tokens {
	out := Tokens{OutputIndex: c.index, TokenIndex: c.count}
	if c.decoder != nil {
		out.Text = c.matcher.pass(c.decoder.Flush())
	}
	return out
}

func (c *continuation) finished(done batch.Done, matched string, t batch.Timings) Finished {
	f := Finished{OutputIndex: c.index, Reason: done.Reason, StopID: done.StopID, Generated: c.count, Timings: t}
	if matched != "" {
		f.Reason, f.Stop = batch.Stop, matched
	}
	return f
}
