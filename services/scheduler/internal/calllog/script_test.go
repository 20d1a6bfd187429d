package calllog_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/internal/scripttest"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/calllog"
)

// TestScripts plays golden scripts. A script is lines of commands. A line that begins with "-> " is
// the outcome of the command before it, and -update rewrites it.
//
//	request MESSAGE       begins a log, 1 s after the epoch
//	next [inexact] [before=D] [behind=D]
//	                      begins an attempt; the outcome is its request. D: time before, and since,
//	                      the first token
//	EVENT                 records a frame, as text: started { ... }, tokens { ... }
//	lost                  records the loss of the attempt
//	state                 prints the accessors
func TestScripts(t *testing.T) { scripttest.Run(t, play) }

func play(t *testing.T, script string) string {
	t.Helper()
	var l *calllog.Log
	var out strings.Builder
	for line := range strings.Lines(script) {
		if strings.HasPrefix(line, "-> ") {
			continue
		}
		out.WriteString(line)
		command, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case command == "" || strings.HasPrefix(command, "#"):
		case command == "request":
			in := &pb.GenerateRequest{}
			require.NoError(t, prototext.Unmarshal([]byte(rest), in), line)
			raw, err := proto.Marshal(in)
			require.NoError(t, err)
			l = calllog.New(raw, in, time.Unix(1, 0))
		case command == "next":
			fmt.Fprintf(&out, "-> %s\n", next(t, l, strings.Fields(rest)))
		case command == "lost":
			fmt.Fprintf(&out, "-> %d in a row\n", l.AttemptLost())
		case command == "state":
			fmt.Fprintf(&out, "-> %s\n", state(t, l))
		default:
			m := &pb.GenerateResponse{}
			require.NoError(t, prototext.Unmarshal([]byte(line), m), line)
			raw, err := proto.Marshal(m)
			require.NoError(t, err)
			fmt.Fprintf(&out, "-> %s\n", verdict(t, l, raw))
		}
	}
	return out.String()
}

// next begins an attempt and returns its request.
func next(t *testing.T, l *calllog.Log, words []string) string {
	t.Helper()
	var elapsed calllog.Elapsed
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		if key == "inexact" {
			continue
		}
		d, err := time.ParseDuration(value)
		require.NoError(t, err)
		switch key {
		case "before":
			elapsed.BeforeToken = d
		case "behind":
			elapsed.SinceToken = d
		default:
			require.FailNow(t, "unknown word", w)
		}
	}
	request, rest := l.NextRequest(slices.Contains(words, "inexact"), elapsed)
	in := &pb.GenerateRequest{}
	require.NoError(t, proto.Unmarshal(slices.Concat(request, rest), in))
	return text(in)
}

func verdict(t *testing.T, l *calllog.Log, raw []byte) string {
	t.Helper()
	v, err := l.Record(raw)
	switch {
	case err != nil:
		require.ErrorIs(t, err, calllog.ErrViolation)
		return strings.TrimPrefix(err.Error(), calllog.ErrViolation.Error()+": ")
	case v.Drop:
		return "dropped"
	case v.Replacement != nil:
		m := &pb.GenerateResponse{}
		require.NoError(t, proto.Unmarshal(v.Replacement, m))
		return "instead " + text(m)
	}
	return fmt.Sprintf("sent, %d tokens", v.Tokens)
}

func state(t *testing.T, l *calllog.Log) string {
	t.Helper()
	usage := &pb.Usage{}
	require.NoError(t, proto.Unmarshal(l.Usage(), usage))
	return fmt.Sprintf("started=%v complete=%v tokens=%d length=%d class=%q digest=%q usage={%s}", l.Started(), l.Complete(), l.Tokens(), l.Length(),
		l.Class(), l.Digest(), text(usage))
}

var spaces = regexp.MustCompile(` +`)

// text returns a message as one line. prototext adds spaces at random, which text removes.
func text(m proto.Message) string {
	return spaces.ReplaceAllString(prototext.MarshalOptions{}.Format(m), " ")
}
