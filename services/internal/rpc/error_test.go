package rpc_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/rpc"
)

func TestErrorRoundTrip(t *testing.T) {
	f := rpc.Error{
		Code: codes.ResourceExhausted, Domain: rpc.WorkerDomain, Reason: "FULL", Message: "all 4 slots are taken",
		Metadata:   map[string]string{"slots": "4"},
		Violations: []rpc.Violation{{Field: "sampling.top_p", Description: "must be in (0, 1]"}},
		RetryAfter: 1500 * time.Millisecond,
	}
	for name, err := range map[string]error{"bare": f.Err(), "wrapped": fmt.Errorf("admit: %w", f.Err())} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, codes.ResourceExhausted, status.Code(err))
			require.Equal(t, "FULL", rpc.Reason(err))
			require.Equal(t, rpc.WorkerDomain, rpc.Domain(err))
			require.Equal(t, f.Metadata, rpc.Info(err).GetMetadata())
			require.Equal(t, f.Violations, rpc.Violations(err))
			require.Equal(t, f.RetryAfter, rpc.RetryAfter(err))
		})
	}
}

// TestErrorReplacesInvalidUTF8 checks a text with which a status would lose its reason on the wire.
func TestErrorReplacesInvalidUTF8(t *testing.T) {
	const bad, want = "a\xffb", "a\ufffdb"
	err := rpc.Error{
		Code: codes.InvalidArgument, Domain: rpc.WorkerDomain, Reason: "BAD", Message: bad,
		Metadata: map[string]string{"text": bad}, Violations: []rpc.Violation{{Field: bad, Description: bad}},
	}.Err()
	require.Equal(t, "BAD", rpc.Reason(err))
	require.Equal(t, want, status.Convert(err).Message())
	require.Equal(t, want, rpc.Info(err).GetMetadata()["text"])
	require.Equal(t, []rpc.Violation{{Field: want, Description: want}}, rpc.Violations(err))
}

func TestErrorCutsLongTextsBetweenRunes(t *testing.T) {
	for name, long := range map[string]string{
		"one byte a rune":      strings.Repeat("a", 100<<10),
		"three bytes a rune":   strings.Repeat("語", 40<<10),
		"three, one byte on":   "a" + strings.Repeat("語", 40<<10),
		"three, two bytes on":  "aa" + strings.Repeat("語", 40<<10),
		"one byte above":       strings.Repeat("a", 2<<10+1),
		"four bytes a rune":    strings.Repeat("😀", 30<<10),
		"four, three bytes on": "aaa" + strings.Repeat("😀", 30<<10),
	} {
		t.Run(name, func(t *testing.T) {
			err := rpc.Error{
				Code: codes.InvalidArgument, Domain: rpc.WorkerDomain, Reason: "LONG", Message: long,
				Metadata:   map[string]string{"text": long},
				Violations: []rpc.Violation{{Field: long, Description: long}},
			}.Err()
			require.Equal(t, "LONG", rpc.Reason(err))
			violation := rpc.Violations(err)[0]
			for _, text := range []string{
				status.Convert(err).Message(), rpc.Info(err).GetMetadata()["text"], violation.Field, violation.Description,
			} {
				require.LessOrEqual(t, len(text), 2<<10)
				require.Greater(t, len(text), 2000)
				require.True(t, utf8.ValidString(text))
				head, cut := strings.CutSuffix(text, "…")
				require.True(t, cut)
				require.True(t, strings.HasPrefix(long, head))
			}
		})
	}
	whole := strings.Repeat("a", 2<<10)
	require.Equal(t, whole, rpc.Error{Code: codes.NotFound, Message: whole}.Status().Message())
}

func TestPlainErrorHasNoDetails(t *testing.T) {
	for name, err := range map[string]error{
		"nil": nil, "no status": fmt.Errorf("plain"), "no details": status.Error(codes.Internal, "x"),
	} {
		t.Run(name, func(t *testing.T) {
			require.Empty(t, rpc.Reason(err))
			require.Empty(t, rpc.Violations(err))
			require.Zero(t, rpc.RetryAfter(err))
		})
	}
}
