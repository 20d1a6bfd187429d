package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/millrace/internal/failure"
)

// callError is a failed call with what is known of its request.
type callError struct {
	err   error
	model string
	usage *pb.Usage
}

func (e *callError) Error() string { return e.err.Error() }
func (e *callError) Unwrap() error { return e.err }

// failed adds to an error what is known of its request; nil stays nil.
func failed(err error, model string, trailer metadata.MD) error {
	if err == nil {
		return nil
	}
	call := &callError{err: err, model: model}
	if raw := trailer.Get(rpc.UsageTrailer); len(raw) > 0 {
		usage := &pb.Usage{}
		if proto.Unmarshal([]byte(raw[0]), usage) == nil {
			call.usage = usage
		}
	}
	return call
}

// modelFlag adds -m.
func modelFlag(fs *pflag.FlagSet, model *string) {
	fs.StringVarP(model, "model", "m", "", "name of a loaded model (default: the one that is loaded)")
}

// info finds a model by name, or the only one that is loaded when name is "".
func info(ctx context.Context, conn grpc.ClientConnInterface, name string) (*pb.ModelInfo, error) {
	out, err := pb.NewModelServiceClient(conn).ListModels(ctx, &pb.ListModelsRequest{})
	if err != nil {
		return nil, failed(err, name, nil)
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
		return nil, fmt.Errorf("%w: there is no model %q; there are: %s", failure.ErrState, name, listed(names))
	case len(ready) == 1:
		return ready[0], nil
	case len(ready) > 1:
		return nil, usagef("several models are loaded: choose one with -m: %s", listed(loaded))
	}
	return nil, fmt.Errorf("%w: no model is loaded: millrace load NAME loads one; there are: %s", failure.ErrState, listed(names))
}

// resolve is name, or the only loaded model's when name is "".
func resolve(ctx context.Context, conn grpc.ClientConnInterface, name string) (string, error) {
	if name != "" {
		return name, nil
	}
	m, err := info(ctx, conn, "")
	return m.GetName(), err
}

func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// text is the arguments joined by spaces, or standard input up to its end without its last line end.
func (a *app) text(args []string, what string) (string, error) {
	text := strings.Join(args, " ")
	if len(args) == 0 || len(args) == 1 && args[0] == "-" {
		if _, tty := terminal(a.In); tty && len(args) == 0 {
			return "", usagef("no %s: give it as an argument or on standard input", what)
		}
		raw, err := io.ReadAll(a.In)
		if err != nil {
			return "", usagef("read standard input: %w", err)
		}
		text = strings.TrimSuffix(strings.TrimSuffix(string(raw), "\n"), "\r")
	}
	if text == "" {
		return "", usagef("the %s is empty: give at least one character", what)
	}
	if !utf8.ValidString(text) {
		return "", usagef("the %s is not UTF-8: convert it, for example with iconv -t UTF-8", what)
	}
	return text, nil
}

// printJSON writes a message on one line.
func printJSON(w io.Writer, m proto.Message) error {
	raw, err := protojson.Marshal(m)
	if err != nil {
		return fmt.Errorf("write %s as JSON: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	var line bytes.Buffer // without the white space that protojson varies
	if err := json.Compact(&line, raw); err != nil {
		return fmt.Errorf("write %s as JSON: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	line.WriteByte('\n')
	_, err = io.WriteString(w, escapeControls(line.String()))
	return err
}

// escapeControls escapes the control characters that JSON lets stand, DEL and those above it: they occur in strings
// only, and a terminal obeys them.
func escapeControls(line string) string {
	if !strings.ContainsFunc(line, isHighControl) {
		return line
	}
	var out strings.Builder
	for _, c := range line {
		if isHighControl(c) {
			fmt.Fprintf(&out, `\u%04x`, c)
		} else {
			out.WriteRune(c)
		}
	}
	return out.String()
}

func isHighControl(c rune) bool { return c >= 0x7f && c <= 0x9f }
