package session

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Session is one run of the program. All fields are set.
type Session struct {
	Out, Err io.Writer
	// Dial connects to --target, or to another server if target is not empty. hangUp closes the
	// connection.
	Dial func(target string) (conn *grpc.ClientConn, hangUp func(), err error)
	// Deadline applies --timeout, or unless if the flag is not given; 0 means none.
	Deadline func(ctx context.Context, unless time.Duration) (context.Context, context.CancelFunc)
	// Names returns the names that list gets from the target, for the completion of a command line. It
	// returns none if the target does not answer in time.
	Names func(ctx context.Context, list func(context.Context, grpc.ClientConnInterface) ([]string, error)) []string
	// TargetFlag returns " --target X" for a command line that the user may copy; "" for the default.
	TargetFlag func() string
}

// One wants exactly one argument, and names it if it is missing.
func One(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("%d arguments: want one, %s", len(args), what)
		}
		return nil
	}
}

// PrintJSON writes a message on one line.
func PrintJSON(w io.Writer, m proto.Message) error {
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

// escapeControls escapes DEL and the C1 control characters, which JSON allows unescaped: they occur
// in strings only, and a terminal obeys them.
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
