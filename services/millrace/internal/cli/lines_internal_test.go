package cli

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func TestCtrlCClearsTheLineThatIsTyped(t *testing.T) {
	for name, r := range map[string]io.Reader{
		"in one read":     strings.NewReader("ab\x03c\x03"),
		"in single bytes": iotest.OneByteReader(strings.NewReader("ab\x03c\x03")),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := io.ReadAll(iotest.OneByteReader(&keys{r: r}))
			require.NoError(t, err)
			require.Equal(t, "ab\x05\x15c\x05\x15", string(got))
		})
	}
}

func TestATracksRateIsThatOfItsState(t *testing.T) {
	var tr track
	at := time.Unix(0, 0)
	step := func(state pb.LoadState, done, total uint64, after time.Duration) string {
		at = at.Add(after)
		tr.update(&pb.LoadProgress{State: state, BytesDone: done, BytesTotal: total}, at)
		return tr.String()
	}
	require.Empty(t, step(pb.LoadState_LOAD_STATE_READING, 0, 0, 0))
	require.Equal(t, "0 B of 4.00 MiB", step(pb.LoadState_LOAD_STATE_UPLOADING, 0, 4<<20, time.Hour))
	require.Equal(t, "2.00 MiB of 4.00 MiB, 1.00 MiB/s", step(pb.LoadState_LOAD_STATE_UPLOADING, 2<<20, 4<<20, 2*time.Second))
	require.Equal(t, "0 B of 4.00 MiB", step(pb.LoadState_LOAD_STATE_VERIFYING, 0, 4<<20, time.Second))
	tr.update(&pb.LoadProgress{State: pb.LoadState_LOAD_STATE_VERIFYING, BytesDone: 1 << 20, BytesTotal: 4 << 20,
		Eta: durationpb.New(1500 * time.Millisecond)}, at.Add(time.Second))
	require.Equal(t, "1.00 MiB of 4.00 MiB, 1.00 MiB/s, 1.50 s left", tr.String())
	at = time.Unix(0, 0)
	require.Equal(t, "4.00 MiB in 2h0m0s", step(pb.LoadState_LOAD_STATE_READY, 0, 0, 2*time.Hour))
}
