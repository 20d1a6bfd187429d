package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/protoflags"
	"github.com/millrace/millrace/services/millrace/internal/render"
	"github.com/millrace/millrace/services/millrace/internal/session"
	"github.com/millrace/millrace/services/millrace/internal/tty"
)

// tokenize shows the tokens of a text.
func (a *app) tokenize() *cobra.Command {
	req, chat := &pb.TokenizeRequest{}, &pb.Chat{}
	var asChat, idsOnly, asJSON bool
	cmd := &cobra.Command{
		Use:   "tokenize [TEXT]",
		Short: "Show the tokens of a text",
		Long: "Shows the token ids of a text, given as arguments or on standard input (whose last line end is dropped), and the\n" +
			"bytes of each, quoted.",
		Example: "  millrace tokenize -m stories \"Once upon a time\"\n  millrace tokenize --ids \"Once upon a time\"\n" +
			"  millrace tokenize -m qwen3 --chat --template-arg enable_thinking=false \"Hello\"",
		RunE: func(cmd *cobra.Command, args []string) error {
			if !asChat {
				if err := onlyWithChat(cmd.Flags()); err != nil {
					return err
				}
			}
			text, err := a.text(args, "text")
			if err != nil {
				return err
			}
			req.Input = &pb.TokenizeRequest_Text{Text: text}
			if asChat {
				req.Input = &pb.TokenizeRequest_Chat{Chat: asMessage(chat, text)}
			}
			conn, hangUp, err := a.dial()
			if err != nil {
				return err
			}
			defer hangUp()
			ctx, cancel := a.deadline(cmd.Context(), unaryTimeout)
			defer cancel()
			if req.Model, err = resolve(ctx, conn, req.GetModel()); err != nil {
				return err
			}
			out, err := pb.NewInferenceServiceClient(conn).Tokenize(ctx, req)
			switch {
			case err != nil:
				return failure.OfCall(err, req.GetModel(), nil)
			case asJSON:
				return session.PrintJSON(a.Out, out)
			case idsOnly:
				fmt.Fprintln(a.Out, joinIDs(out.GetTokenIds()))
				return nil
			}
			if out.GetRendered() != "" {
				fmt.Fprintf(a.Out, "rendered: %s\n", strconv.Quote(out.GetRendered()))
			}
			fmt.Fprint(a.Out, pieceTable(out))
			return nil
		},
	}
	fs := cmd.Flags()
	modelFlag(fs, &req.Model)
	protoflags.Register(fs, req, map[string]string{
		"add_special":   "add the model's leading and trailing special tokens (unset: true for text, false with --chat)",
		"parse_special": "recognise special tokens in the text (unset: false for text; with --chat those that the template wrote)",
	})
	group(fs, "Chat template", func() {
		fs.BoolVar(&asChat, "chat", false, "take the text as a user's message and render it with the model's chat template")
		chatFlags(fs, chat)
	})
	fs.BoolVar(&idsOnly, "ids", false, "print only the ids, separated by commas")
	fs.BoolVar(&asJSON, "json", false, "print the answer as JSON; pieces are base64")
	return cmd
}

// pieceTable is one row a token: its id and its bytes as a quoted string.
func pieceTable(out *pb.TokenizeResponse) string {
	rows := make([][]string, len(out.GetTokenIds()))
	for i, id := range out.GetTokenIds() {
		rows[i] = []string{fmt.Sprint(id), ""}
		if i < len(out.GetPieces()) {
			rows[i][1] = strconv.Quote(string(out.GetPieces()[i]))
		}
	}
	return render.Table([]string{"ID", "PIECE"}, rows)
}

func joinIDs(ids []uint32) string {
	words := make([]string, len(ids))
	for i, id := range ids {
		words[i] = fmt.Sprint(id)
	}
	return strings.Join(words, ",")
}

// detokenize shows the text of token ids.
func (a *app) detokenize() *cobra.Command {
	req := &pb.DetokenizeRequest{}
	asJSON := false
	cmd := &cobra.Command{
		Use:     "detokenize [IDS]",
		Short:   "Show the text of token ids",
		Long:    "Shows the text of token ids, given as arguments or on standard input, separated by commas or spaces.",
		Example: "  millrace detokenize -m stories 1,403,407",
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := a.text(args, "list of token ids")
			if err != nil {
				return err
			}
			if req.TokenIds, err = protoflags.ParseIDs(text); err != nil {
				return failure.Usagef("%w", err)
			}
			conn, hangUp, err := a.dial()
			if err != nil {
				return err
			}
			defer hangUp()
			ctx, cancel := a.deadline(cmd.Context(), unaryTimeout)
			defer cancel()
			if req.Model, err = resolve(ctx, conn, req.GetModel()); err != nil {
				return err
			}
			out, err := pb.NewInferenceServiceClient(conn).Detokenize(ctx, req)
			switch {
			case err != nil:
				return failure.OfCall(err, req.GetModel(), nil)
			case asJSON:
				return session.PrintJSON(a.Out, out)
			}
			text = out.GetText()
			if _, isTerminal := tty.Of(a.Out); isTerminal {
				text = render.Safe(text)
			}
			fmt.Fprintln(a.Out, text)
			return nil
		},
	}
	fs := cmd.Flags()
	modelFlag(fs, &req.Model)
	protoflags.Register(fs, req, map[string]string{"render_special": "write special tokens out"})
	fs.BoolVar(&asJSON, "json", false, "print the answer as JSON")
	return cmd
}
