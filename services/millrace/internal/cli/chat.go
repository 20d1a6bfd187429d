package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/protoflags"
	"github.com/millrace/millrace/services/millrace/internal/render"
	"github.com/millrace/millrace/services/millrace/internal/tty"
)

const chatHelp = `/help           this list
/show           the model, the settings and how long the conversation is
/reset          forget the conversation, the system message excepted
/system TEXT    set the system message and forget the conversation; without TEXT: none
/seed N         set the seed; without N: a new one for each answer
/set NAME VALUE set any knob, such as /set temperature 0.7; without VALUE: its default
"""             begin and end a message of several lines; pasted lines are one message
/quit           leave, as Ctrl-D does
Ctrl-C stops an answer; what there is of it stays in the conversation.
`

// chat converses.
func (a *app) chat() *cobra.Command {
	req, by := &pb.GenerateRequest{}, &pb.Chat{}
	var system string
	var quiet bool
	cmd := &cobra.Command{
		Use:   "chat",
		Short: "Converse with a model that has a chat template",
		Long: "Converses: each line is a message, the answer is streamed. On a terminal, lines can be edited and earlier ones\n" +
			"recalled with the up key. Lines from elsewhere are taken one by one, and the first failure ends the program.\n" +
			"--timeout bounds each answer. After a call of a tool, the next line is its result.\n\n" + chatHelp,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runChat(cmd.Context(), req, by, system, quiet) },
	}
	fs := cmd.Flags()
	modelFlag(fs, &req.Model)
	fs.StringVar(&system, "system", "", "system message")
	fs.BoolVarP(&quiet, "quiet", "q", false, "print no statistics")
	group(fs, "Chat template", func() { chatFlags(fs, by) })
	samplingFlags(fs, req)
	scheduleFlags(fs, req)
	if err := fs.MarkHidden("num-sequences"); err != nil {
		panic(err) // samplingFlags adds it
	}
	return cmd
}

// conversation is a chat under way.
type conversation struct {
	app        *app
	conn       grpc.ClientConnInterface
	req        *pb.GenerateRequest // with the knobs; its chat is set for each answer
	by         *pb.Chat            // how the messages are rendered; it has none
	system     string
	messages   []*pb.ChatMessage // without the system message
	open       []*pb.ToolCall    // calls of the last answer without a result
	isTerminal bool              // a person types
	quiet      bool
}

func (a *app) runChat(ctx context.Context, req *pb.GenerateRequest, by *pb.Chat, system string, quiet bool) error {
	if req.GetSampling().GetNumSequences() > 1 {
		return failure.Usagef("--num-sequences: a conversation has one answer at a time")
	}
	conn, hangUp, err := a.dial()
	if err != nil {
		return err
	}
	defer hangUp()
	asking, cancel := a.deadline(ctx, unaryTimeout)
	model, err := info(asking, conn, req.GetModel())
	cancel()
	if err != nil {
		return err
	}
	req.Model = model.GetName()
	if c := model.GetCapabilities(); c != nil && !c.GetChatTemplate() && by.TemplateName == nil {
		return fmt.Errorf("%w: model %q has no chat template: it continues texts and holds no conversation\n"+
			"try: millrace generate -m %s%s \"Once upon a time\"", failure.ErrState, req.GetModel(), req.GetModel(), a.request().TargetFlag())
	}
	in := a.lineReader()
	defer in.close()
	c := &conversation{app: a, conn: conn, req: req, by: by, system: system, isTerminal: in.interactive(), quiet: quiet}
	if c.isTerminal {
		fmt.Fprintf(a.Err, "%s; /help lists the commands, Ctrl-D leaves\n", render.Line(req.GetModel()))
	}
	return c.run(ctx, in)
}

// run reads and answers lines until they end.
func (c *conversation) run(ctx context.Context, in lineReader) error {
	for ctx.Err() == nil {
		line, err := ask(ctx, in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		line = strings.TrimSpace(line)
		message := strings.Contains(line, "\n") // pasted lines are one message, also if they begin like a command
		if line == quotes {
			message = true
			if line, err = quoted(ctx, in); err != nil {
				return err
			}
		}
		switch {
		case line == "":
		case !message && line == "/quit":
			return nil
		case !message && strings.HasPrefix(line, "/"):
			err = c.command(line)
		default:
			err = c.answer(ctx, line)
		}
		switch {
		case err != nil && (!c.isTerminal || ctx.Err() != nil):
			return err
		case err != nil:
			c.app.explain(err)
			if rpc.Reason(err) == reason.PromptTooLong && len(c.messages) > 0 {
				fmt.Fprintln(c.app.Err, "  /reset forgets the conversation so far")
			}
		}
	}
	return context.Cause(ctx)
}

// quotes is the line that begins and ends a message of several lines.
const quotes = `"""`

// quoted reads the lines of a message up to the closing quotes, or to the end of input.
func quoted(ctx context.Context, in lineReader) (string, error) {
	var lines []string
	for {
		line, err := ask(ctx, in)
		switch {
		case errors.Is(err, io.EOF) || err == nil && strings.TrimSpace(line) == quotes:
			return strings.TrimSpace(strings.Join(lines, "\n")), nil
		case err != nil:
			return "", err
		}
		lines = append(lines, line)
	}
}

// ask reads a line, unless ctx ends first; then the read is left behind, for the program to end.
func ask(ctx context.Context, in lineReader) (string, error) {
	type answer struct {
		line string
		err  error
	}
	read := make(chan answer, 1)
	go func() {
		line, err := in.read()
		read <- answer{line, err}
	}()
	select {
	case got := <-read:
		return got.line, got.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// command obeys a line that begins with a slash.
func (c *conversation) command(line string) error {
	word, rest, _ := strings.Cut(line, " ")
	rest = strings.TrimSpace(rest)
	switch word {
	case "/help":
		fmt.Fprint(c.app.Err, chatHelp)
	case "/show":
		c.show()
	case "/reset":
		c.messages, c.open = nil, nil
	case "/system":
		c.system, c.messages, c.open = rest, nil, nil
	case "/seed":
		return c.set("seed", rest)
	case "/set":
		name, value, _ := strings.Cut(rest, " ")
		return c.set(name, strings.TrimSpace(value))
	default:
		return failure.Usagef("there is no command %s; /help lists them", word)
	}
	return nil
}

// show prints the model, the settings and the length of the conversation.
func (c *conversation) show() {
	fmt.Fprintf(c.app.Err, "model %s, %s so far\n", render.Line(c.req.GetModel()), plural(len(c.messages), "message"))
	if c.system != "" {
		fmt.Fprintf(c.app.Err, "system: %s\n", render.Line(c.system))
	}
	for _, m := range []proto.Message{c.req.GetSampling(), c.req.GetStopping()} {
		if text := (prototext.MarshalOptions{}).Format(m); text != "" {
			fmt.Fprintln(c.app.Err, render.Line(text))
		}
	}
}

// set changes a knob of sampling or stopping; no value is the default. On a wrong value nothing changes.
func (c *conversation) set(name, value string) error {
	field := strings.ReplaceAll(name, "-", "_")
	if field == "num_sequences" {
		return failure.Usagef("a conversation has one answer at a time")
	}
	for _, m := range []proto.Message{c.req.GetSampling(), c.req.GetStopping()} {
		fd := m.ProtoReflect().Descriptor().Fields().ByTextName(field)
		if fd == nil {
			continue
		}
		before := proto.Clone(m)
		m.ProtoReflect().Clear(fd)
		if value == "" {
			if c.isTerminal {
				fmt.Fprintf(c.app.Err, "%s has its default again\n", field)
			}
			return nil
		}
		if err := protoflags.Set(m, name, value); err != nil {
			proto.Reset(m)
			proto.Merge(m, before)
			return failure.Usagef("%s: %w", name, err)
		}
		return nil
	}
	return failure.Usagef("there is no knob %q; millrace chat --help lists them", name)
}

// answer adds a message, streams the answer and adds it. Ctrl-C ends the answer and keeps what there is; after a
// failure the conversation is as it was.
func (c *conversation) answer(ctx context.Context, line string) error {
	messages := slices.Concat(c.messages, []*pb.ChatMessage{c.message(line)})
	if len(c.open) > 1 { // the results of the other calls are missing
		c.messages, c.open = messages, c.open[1:]
		c.wants()
		return nil
	}
	chat := proto.CloneOf(c.by)
	chat.Messages = messages
	if c.system != "" {
		chat.Messages = append([]*pb.ChatMessage{{Role: "system", Content: c.system}}, messages...)
	}
	c.req.Input = &pb.GenerateRequest_Chat{Chat: chat}
	ctx, cancel := c.app.deadline(ctx, 0)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if c.isTerminal { // elsewhere Ctrl-C ends the program
		c.app.onInterrupt(func() { stop(failure.ErrInterrupted) })
		defer c.app.onInterrupt(nil)
	}

	_, isTerminal := tty.Of(c.app.Out)
	out := newOutputs(c.app.Out, isTerminal, 1)
	var said partText
	done, err := stream(ctx, c.conn, c.app.leave, c.req, func(event *pb.GenerateResponse) error {
		out.text(0, said.of(event.GetTokens()))
		return out.err
	})
	done.repeat = repeatBy("/seed", c.req.GetSampling())
	if done.tokens > 0 || err == nil {
		out.text(0, said.end())
		out.finish(0)
	}
	stopped := c.isTerminal && err != nil && errors.Is(context.Cause(ctx), failure.ErrInterrupted)
	if !c.quiet && (err == nil || done.tokens > 0) {
		note := ""
		if stopped {
			note = ", stopped"
		}
		fmt.Fprintln(c.app.Err, c.app.faint(fmt.Sprintf("(%s%s)", done, note)))
	}
	if err != nil && !stopped {
		return err
	}
	if said.said.Len() == 0 && stopped {
		return nil // nothing was said: as if the message had not been sent
	}
	answer := &pb.ChatMessage{Role: "assistant", Content: said.said.String()}
	if c.open = nil; !stopped {
		answer.ToolCalls, c.open = said.calls, said.calls
	}
	c.messages = slices.Concat(messages, []*pb.ChatMessage{answer})
	c.wants()
	return nil
}

// message returns the message of a line: the result of a call, if one is open.
func (c *conversation) message(line string) *pb.ChatMessage {
	if len(c.open) == 0 {
		return &pb.ChatMessage{Role: "user", Content: line}
	}
	return &pb.ChatMessage{Role: "tool", Content: line, ToolCallId: &c.open[0].Id}
}

// wants says whose result the next line is.
func (c *conversation) wants() {
	if len(c.open) > 0 && c.isTerminal {
		fmt.Fprintln(c.app.Err, c.app.faint("(the next line is the result of "+render.Line(c.open[0].GetName())+")"))
	}
}
