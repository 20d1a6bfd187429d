package generate

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/guide"
	"github.com/millrace/millrace/gpuworker/tools"
)

// continuation is the text side of one sequence: ids in, text and stops out. What it has delivered
// after k ids depends on those ids, the stops and the limit alone: text that was held back comes
// with the id that ends it.
type continuation struct {
	request    *Request
	index      int
	limit      int         // maximum of tokens
	decoder    TextDecoder // nil: no text
	newDecoder NewDecoder  // for a stop token that the caller wants to see
	matcher    stopMatcher
	guide      guide.State   // after the resumed ids; the loop has the state after all
	resumed    []int32       // the ids that it started with
	count      int           // ids consumed, including resumed ones; <= limit
	end        *ending       // nil until an id ends it; no id follows
	lengths    []int         // scratch: bytes of text by token
	parser     *tools.Parser // nil: the answer has no parts
	parts      []Part        // scratch: of the text so far of an event
	row        int           // of the event
	reasoning  int           // tokens of reasoning
	delivered  bool          // its end was delivered by an earlier run: it reports nothing
}

// ending is why a continuation ended. Exactly one field is set.
type ending struct {
	stop   string // stop string
	token  *int32 // stop token
	length bool
}

// String describes it for a sentence.
func (e *ending) String() string {
	switch {
	case e.token != nil:
		return fmt.Sprintf("stop token %d", *e.token)
	case e.stop != "":
		return fmt.Sprintf("the stop string %.64q", e.stop)
	}
	return "its length"
}

// newContinuation returns continuation index at its start. decoders is unused if the request wants
// no text.
func newContinuation(r *Request, index, limit int, decoders NewDecoder) *continuation {
	c := &continuation{request: r, index: index, limit: limit, matcher: stopMatcher{stops: r.Stop, include: r.IncludeStop}}
	if r.Grammar != nil {
		if c.guide = r.Grammar.Start(r.StopIDs); r.UsualSpelling {
			c.guide = c.guide.UsualSpelling()
		}
	}
	if !r.NoText {
		c.decoder, c.newDecoder = decoders(false), decoders
	}
	if r.Parts != nil {
		c.parser = r.Parts()
	}
	return c
}

// consume adds generated tokens and returns what to deliver. Tokens after the one that ends the
// continuation are dropped.
func (c *continuation) consume(rows []engine.RowResult) (out Tokens, err error) {
	out = Tokens{OutputIndex: c.index, TokenIndex: c.count, TextBytes: c.lengths[:0]}
	c.parts = c.parts[:0]
	for i := range rows {
		if c.end != nil {
			break
		}
		c.row = i
		text, err := c.push(rows[i].Token)
		if err != nil {
			return out, err
		}
		out.Rows, out.Text, out.TextBytes = rows[:i+1], out.Text+text, append(out.TextBytes, len(text))
	}
	c.lengths, out.Parts = out.TextBytes, c.parts
	return out, nil
}

// push adds the next id and returns the text to deliver with it. It sets end if the id is the last
// one. A stop token takes precedence over a stop string that it completes, and both over the
// length.
func (c *continuation) push(id int32) (show string, err error) {
	c.count++
	if c.parser != nil {
		return c.pushParts(id)
	}
	switch {
	case slices.Contains(c.request.StopIDs, id):
		c.end = &ending{token: &id}
		show, err = c.lastText(id)
	case c.decoder != nil:
		show, err = c.text(id)
	}
	if err != nil {
		return "", fmt.Errorf("detokenise token %d of output %d: %w", c.count-1, c.index, err)
	}
	if c.end == nil && c.count >= c.limit {
		c.end = &ending{length: true}
		if c.decoder != nil {
			show += c.matcher.pass(c.decoder.Flush())
		}
	}
	return show, nil
}

// text is the text to deliver with an id other than a stop token.
func (c *continuation) text(id int32) (string, error) {
	text, err := c.decoder.Push(id)
	if err != nil {
		return "", err
	}
	if c.count <= int(c.request.Params.MinTokens) {
		return c.matcher.pass(text), nil
	}
	show, matched := c.matcher.push(text)
	if matched != "" {
		c.end = &ending{stop: matched}
	}
	return show, nil
}

// lastText is the text to deliver with a stop token: everything that was held back and, if the
// caller wants it, the token itself, a control token by its name.
func (c *continuation) lastText(id int32) (show string, err error) {
	switch {
	case c.decoder == nil:
		return "", nil
	case !c.request.IncludeStop:
		return c.matcher.pass(c.decoder.Flush()), nil
	}
	alone := c.newDecoder(false)
	if show, err = alone.Push(id); err != nil {
		return "", err
	}
	if show+alone.Flush() == "" { // a control token
		show, err = c.newDecoder(true).Push(id)
		return c.matcher.pass(c.decoder.Flush() + show), err
	}
	show, err = c.decoder.Push(id) // the token may complete a character
	return c.matcher.pass(show + c.decoder.Flush()), err
}

// finish is the end of the continuation according to its ids.
func (c *continuation) finish(cached int, t batch.Timings) Finished {
	f := Finished{OutputIndex: c.index, Reason: batch.Stop, Generated: c.count, Cached: cached, Reasoning: c.reasoning, Timings: t}
	switch {
	case c.end == nil || c.end.length: // no id if only the prompt is computed
		f.Reason = batch.Length
	case c.end.token != nil:
		f.StopID = *c.end.token
	default:
		f.Stop = c.end.stop
	}
	return f
}
