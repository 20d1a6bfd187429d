package generate

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/gpuworker/tools"
)

// pushParts is push for an answer with parts. The text is that of the parts, without the marks between them. Stop
// strings match in the content alone: text of other kinds comes as it is, after what the content held back.
func (c *continuation) pushParts(id int32) (show string, err error) {
	if c.parser.Reasons() {
		c.reasoning++
	}
	stop := slices.Contains(c.request.StopIDs, id)
	switch {
	case stop:
		c.end = &ending{token: &id}
		show = c.show(c.parser.Push(c.decoder.Flush()))
	default:
		show, err = c.partsOf(id)
	}
	if err != nil {
		return "", fmt.Errorf("detokenise token %d of output %d: %w", c.count-1, c.index, err)
	}
	if c.end == nil && c.count >= c.limit {
		c.end = &ending{length: true}
		show += c.show(c.parser.Push(c.decoder.Flush()))
	}
	if c.end != nil && c.end.stop == "" {
		show += c.show(c.parser.Flush())
		show += c.content(c.matcher.pass(""))
	}
	if stop && c.request.IncludeStop {
		text, err := c.newDecoder(true).Push(id)
		if err != nil {
			return "", err
		}
		show += c.content(text)
	}
	return show, nil
}

// partsOf is the text of the parts that an id completes.
func (c *continuation) partsOf(id int32) (show string, err error) {
	if mark := c.request.Mark(id); mark != "" {
		show = c.show(c.parser.Push(c.decoder.Flush()))
		if c.end != nil {
			return show, nil
		}
		return show + c.show(c.parser.Control(mark)), nil
	}
	text, err := c.decoder.Push(id)
	if err != nil {
		return "", err
	}
	return c.show(c.parser.Push(text)), nil
}

// show records parts and returns their text, up to a stop string in the content.
func (c *continuation) show(parts []tools.Part) (show string) {
	for _, p := range parts {
		switch {
		case c.end != nil && c.end.stop != "":
			return show
		case p.Kind != tools.Content:
			show += c.content(c.matcher.pass(""))
			show += c.add(Part{Kind: p.Kind, Call: p.Index, Name: p.Name}, p.Text)
		case c.end != nil || c.count <= int(c.request.Params.MinTokens):
			show += c.content(c.matcher.pass(p.Text))
		default:
			text, matched := c.matcher.push(p.Text)
			if matched != "" {
				c.end = &ending{stop: matched}
			}
			show += c.content(text)
		}
	}
	return show
}

// content records text of the answer.
func (c *continuation) content(text string) string { return c.add(Part{Kind: tools.Content}, text) }

// add records a part, and joins it with the one before if they are of one kind. It returns the text.
func (c *continuation) add(p Part, text string) string {
	p.Bytes, p.Row = len(text), c.row
	if n := len(c.parts); p.Name == "" && n > 0 && c.parts[n-1].Kind == p.Kind && c.parts[n-1].Call == p.Call {
		c.parts[n-1].Bytes += p.Bytes
	} else if p.Bytes > 0 || p.Name != "" {
		c.parts = append(c.parts, p)
	}
	return text
}
