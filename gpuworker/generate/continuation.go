package generate

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
)

// continuation is the text side of one sequence: ids in, text and stops out. What it has given after k ids is a function of
// those ids, the stops and the limit alone: all that was held back comes with the id that ends it.
type continuation struct {
	request *Request
	index   int
	limit   int         // tokens at most
	decoder TextDecoder // nil: no text
	another NewDecoder  // for a stop token that the caller wants to see
	matcher stopMatcher
	resumed []int32 // the ids that it began with
	count   int     // ids taken, those resumed counted; <= limit
	end     *ending // nil until an id ends it; then no id follows
	lengths []int   // of texts, in the last run of tokens
	silent  bool    // its end was delivered before: it tells nothing
}

// ending is why a continuation ended: one of its parts is set.
type ending struct {
	stop   string // this stop string
	token  *int32 // this stop token
	length bool
}

// String names it in a sentence.
func (e *ending) String() string {
	switch {
	case e.token != nil:
		return fmt.Sprintf("stop token %d", *e.token)
	case e.stop != "":
		return fmt.Sprintf("the stop string %.64q", e.stop)
	}
	return "its length"
}

// newContinuation is continuation index at its beginning; decoders are used unless the request wants no text.
func newContinuation(r *Request, index, limit int, decoders NewDecoder) *continuation {
	c := &continuation{request: r, index: index, limit: limit, matcher: stopMatcher{stops: r.Stop, include: r.IncludeStop}}
	if !r.NoText {
		c.decoder, c.another = decoders(false), decoders
	}
	return c
}

// take adds generated tokens and returns what to deliver. Those behind the one that ends the continuation are dropped.
func (c *continuation) take(rows []engine.RowResult) (out Tokens, err error) {
	out = Tokens{OutputIndex: c.index, TokenIndex: c.count, TextBytes: c.lengths[:0]}
	for i := range rows {
		if c.end != nil {
			break
		}
		text, err := c.push(rows[i].Token)
		if err != nil {
			return out, err
		}
		out.Rows, out.Text, out.TextBytes = rows[:i+1], out.Text+text, append(out.TextBytes, len(text))
	}
	c.lengths = out.TextBytes
	return out, nil
}

// push adds the next id and returns the text to show with it. It sets end if the id is the last: a stop token goes before a
// stop string that is complete with it, and both before the length.
func (c *continuation) push(id int32) (show string, err error) {
	c.count++
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

// text is what to show with an id that is no stop token.
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

// lastText is what to show with a stop token: all that was held back, and the token itself if that is wanted, a control token
// by its name.
func (c *continuation) lastText(id int32) (show string, err error) {
	switch {
	case c.decoder == nil:
		return "", nil
	case !c.request.IncludeStop:
		return c.matcher.pass(c.decoder.Flush()), nil
	}
	alone := c.another(false)
	if show, err = alone.Push(id); err != nil {
		return "", err
	}
	if show+alone.Flush() == "" { // a control token
		show, err = c.another(true).Push(id)
		return c.matcher.pass(c.decoder.Flush() + show), err
	}
	show, err = c.decoder.Push(id) // it may complete a character
	return c.matcher.pass(show + c.decoder.Flush()), err
}

// finished is the end that the ids say.
func (c *continuation) finished(cached int, t batch.Timings) Finished {
	f := Finished{OutputIndex: c.index, Reason: batch.Stop, Generated: c.count, Cached: cached, Timings: t}
	switch {
	case c.end == nil || c.end.length: // no id at all where only the prompt is computed
		f.Reason = batch.Length
	case c.end.token != nil:
		f.StopID = *c.end.token
	default:
		f.Stop = c.end.stop
	}
	return f
}
