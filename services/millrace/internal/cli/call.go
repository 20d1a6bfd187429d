package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/render"
	"github.com/millrace/millrace/services/millrace/internal/tty"
)

// modelFlag adds -m.
func modelFlag(fs *pflag.FlagSet, model *string) {
	fs.StringVarP(model, "model", "m", "", "name of a loaded model (default: the one that is loaded)")
}

// info finds a model by name, or the only one that is loaded when name is "".
func info(ctx context.Context, conn grpc.ClientConnInterface, name string) (*pb.ModelInfo, error) {
	out, err := pb.NewModelServiceClient(conn).ListModels(ctx, &pb.ListModelsRequest{})
	if err != nil {
		return nil, failure.OfCall(err, name, nil)
	}
	var ready []*pb.ModelInfo
	var loaded, names []string
	for _, m := range out.GetModels() {
		if m.GetState() == pb.ModelState_MODEL_STATE_READY {
			ready, loaded = append(ready, m), append(loaded, m.GetName())
			if name == m.GetName() {
				return m, nil
			}
		}
		names = append(names, m.GetName())
	}
	switch {
	case name != "":
		for _, m := range out.GetModels() {
			if m.GetName() == name {
				return m, nil
			}
		}
		return nil, fmt.Errorf("%w: there is no model %q; there are: %s", failure.ErrState, name, render.List(names))
	case len(ready) == 1:
		return ready[0], nil
	case len(ready) > 1:
		return nil, failure.Usagef("several models are loaded: choose one with -m: %s", render.List(loaded))
	}
	return nil, fmt.Errorf("%w: no model is loaded: millrace load NAME loads one; there are: %s", failure.ErrState, render.List(names))
}

// resolve is name, or the only loaded model's when name is "".
func resolve(ctx context.Context, conn grpc.ClientConnInterface, name string) (string, error) {
	if name != "" {
		return name, nil
	}
	m, err := info(ctx, conn, "")
	return m.GetName(), err
}

// text is the arguments joined by spaces, or standard input up to its end without its last line end.
func (a *app) text(args []string, what string) (string, error) {
	text := strings.Join(args, " ")
	if len(args) == 0 || len(args) == 1 && args[0] == "-" {
		if _, isTerminal := tty.Of(a.In); isTerminal && len(args) == 0 {
			return "", failure.Usagef("no %s: give it as an argument or on standard input", what)
		}
		raw, err := io.ReadAll(a.In)
		if err != nil {
			return "", failure.Usagef("read standard input: %w", err)
		}
		text = strings.TrimSuffix(strings.TrimSuffix(string(raw), "\n"), "\r")
	}
	if text == "" {
		return "", failure.Usagef("the %s is empty: give at least one character", what)
	}
	if !utf8.ValidString(text) {
		return "", failure.Usagef("the %s is not UTF-8: convert it, for example with iconv -t UTF-8", what)
	}
	return text, nil
}

// texts are the arguments, or the lines of standard input without any or with "-".
func (a *app) texts(args []string, what string) ([]string, error) {
	texts := args
	if len(args) == 0 || len(args) == 1 && args[0] == "-" {
		text, err := a.text(nil, "list of "+what+"s")
		if err != nil {
			return nil, err
		}
		texts = strings.Split(text, "\n")
		for i := range texts {
			texts[i] = strings.TrimSuffix(texts[i], "\r")
		}
	}
	for i, text := range texts {
		if !utf8.ValidString(text) {
			return nil, failure.Usagef("%s %d is not UTF-8: convert it, for example with iconv -t UTF-8", what, i+1)
		}
	}
	return texts, nil
}
