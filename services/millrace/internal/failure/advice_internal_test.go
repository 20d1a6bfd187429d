package failure

import (
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

func TestEveryReasonIsThoughtOf(t *testing.T) {
	require.Len(t, advices, len(reason.All()))
	for _, r := range reason.All() {
		advised, known := advices[r]
		require.True(t, known, "what shall one do about %s?", r)
		text := Explain(rpc.Error{Code: codes.Internal, Domain: rpc.WorkerDomain, Reason: r, Message: "x"}.Err(),
			Request{Target: "there:1", TargetGiven: true, Model: "m"})
		_, next, found := strings.Cut(text, "\n  try: ")
		require.Equal(t, advised != "", found, r)
		require.NotContains(t, next, "TARGET")
		require.NotContains(t, next, "MODEL")
		for _, c := range text {
			require.True(t, c == '\n' || !unicode.IsControl(c))
		}
	}
}
