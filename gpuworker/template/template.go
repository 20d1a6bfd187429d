package template

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/fairsem"
)

// Message is one message of a conversation. The fields after Content are empty in most.
type Message struct {
	Role       string
	Content    string
	Reasoning  string     `json:",omitempty"` // of an assistant
	ToolCalls  []ToolCall `json:",omitempty"` // of an assistant
	ToolCallID string     `json:",omitempty"` // of a tool: the call that it answers
	Name       string     `json:",omitempty"` // of a tool
}

// ToolCall is a call of a tool. Arguments is a JSON object; the template gets its value.
type ToolCall struct {
	ID, Name  string
	Arguments string
}

// Tool is a function that the model may call. Parameters is its JSON schema, "" for none; the template gets its value.
type Tool struct {
	Name, Description string
	Parameters        string
}

// Prompt is a rendered conversation. Own are the ranges of its bytes that the template wrote,
// ascending and disjoint: special tokens in them are the template's. All other bytes came from the
// caller.
type Prompt struct {
	Text string
	Own  [][2]int
}

// Input is the data for a rendering.
type Input struct {
	Messages            []Message
	Tools               []Tool
	AddGenerationPrompt bool // end with the start of the assistant's message
	BOS, EOS            string
	Now                 time.Time // for templates that write the date; in its own time zone
	Tenant              string    // for fair queueing; templates do not see it
	// Variables are further ones by name: nil, bool, float64, string, []any and map[string]any.
	// NameProblem defines valid names. The template's own names take precedence. Whole numbers up
	// to 2^53 are int in the template.
	Variables map[string]any
}

const (
	// mostChildren bounds the small conversations that are rendered at once, each in its own child.
	// Half as many large ones may run in addition.
	mostChildren = 4
	// largeInput is the length from which rendering takes milliseconds. largeInputs bounds the
	// bytes of such conversations that are rendered at once.
	largeInput  = 64 << 10
	largeInputs = 16 << 20
)

// Slots bounds the conversations that all templates which share it render at once. Create it with
// NewSlots. It is safe for concurrent use.
type Slots struct{ *fairsem.Semaphore }

// NewSlots returns slots for as many small conversations as there are processors, at most 4, and
// half as many large ones.
func NewSlots() *Slots {
	atOnce := min(runtime.GOMAXPROCS(0), mostChildren)
	return &Slots{fairsem.New(fairsem.Config{Small: atOnce, Large: atOnce / 2, LargeFrom: largeInput, LargeBytes: largeInputs})}
}

// Template is one parsed chat template. It is safe for concurrent use. Conversations are rendered
// concurrently, fairly by tenant; one below 64 KiB never waits for a larger one.
type Template struct {
	source string
	opts   Options
	slots  *Slots
	pool   pool
	writes atomic.Int32 // result of WritesMessages
}

// New parses a template. It returns ErrTemplate, ErrLimit or ErrChild. The caller must close the
// template.
func New(source string, opts Options) (*Template, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if len(source) > opts.MaxSource {
		return nil, fmt.Errorf("template has %d bytes, more than %d: %w", len(source), opts.MaxSource, ErrLimit)
	}
	if !utf8.ValidString(source) {
		return nil, fmt.Errorf("%w: it is not UTF-8", ErrTemplate) // the protocol could not carry it
	}
	t := &Template{source: source, opts: opts, slots: opts.Slots}
	if t.slots == nil {
		t.slots = NewSlots()
	}
	c, err := startChild(context.Background(), source, opts)
	if err != nil {
		return nil, err
	}
	if opts.Lazy {
		c.kill()
		return t, nil
	}
	t.pool.mu.idle = []*child{c}
	return t, nil
}

// Render returns the prompt for a conversation. It returns ErrTemplate, ErrLimit, ErrChild,
// ErrClosed or the context's error. After all but ErrClosed the template stays usable.
func (t *Template) Render(ctx context.Context, in Input) (Prompt, error) {
	release, err := t.slots.Acquire(ctx, in.Tenant, in.bytes())
	if err != nil {
		return Prompt{}, ctx.Err()
	}
	defer release()
	c, err := t.pool.acquire()
	if err != nil {
		return Prompt{}, err
	}
	used := c != nil
	defer func() { t.pool.release(c) }()
	out, err := t.render(ctx, &c, in)
	if used && errors.Is(err, ErrChild) && ctx.Err() == nil {
		// The child was killed or stopped from outside since its last use: try a new one.
		out, err = t.render(ctx, &c, in)
	}
	if err != nil && errors.Is(err, ErrChild) && ctx.Err() != nil {
		err = ctx.Err()
	}
	return out, err
}

// render uses a child, or starts one. A child that fails is ended.
func (t *Template) render(ctx context.Context, c **child, in Input) (Prompt, error) {
	if *c == nil {
		started, err := startChild(ctx, t.source, t.opts)
		if err != nil {
			return Prompt{}, err
		}
		*c = started
	}
	rep, err := (*c).ask(ctx, request{Render: newRenderArgs(in)}, t.opts.Timeout)
	if (*c).dead {
		*c = nil
	}
	if err != nil {
		return Prompt{}, err
	}
	return rep.prompt()
}

// Close ends the child processes after running renderings have finished. Closing twice does
// nothing.
func (t *Template) Close() error {
	t.pool.close()
	return nil
}

// bytes is the length of the messages and tools.
func (in Input) bytes() int {
	sum := 0
	for i := range in.Messages {
		m := &in.Messages[i]
		sum += len(m.Role) + len(m.Content) + len(m.Reasoning)
		for _, c := range m.ToolCalls {
			sum += len(c.Name) + len(c.Arguments)
		}
	}
	for _, t := range in.Tools {
		sum += len(t.Name) + len(t.Description) + len(t.Parameters)
	}
	return sum
}
