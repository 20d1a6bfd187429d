package e2e

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/http"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// responseOf returns the HTTP response of a call, as a proxy sees it.
func responseOf(t *testing.T, on *server, in *pb.GenerateRequest) (header, trailer http.Header) {
	t.Helper()
	message, err := proto.Marshal(in)
	require.NoError(t, err)
	frame := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	req, err := http.NewRequestWithContext(within(t), http.MethodPost, "http://"+on.address+pb.InferenceService_Generate_FullMethodName, bytes.NewReader(frame))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	plain := &http.Transport{Protocols: new(http.Protocols)}
	plain.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(plain.CloseIdleConnections)
	answer, err := plain.RoundTrip(req)
	require.NoError(t, err)
	defer func() { require.NoError(t, answer.Body.Close()) }()
	_, err = io.Copy(io.Discard, answer.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, answer.StatusCode)
	return answer.Header, answer.Trailer
}

// Proxies that retry by the gRPC status, as Envoy does, read it from the headers and not from the
// trailers. So a refusal must be headers only, and an answer that has begun must have its status in
// trailers.
func TestTheStatusOfARefusalIsInItsHeaders(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	s, full := startScheduler(t, []*server{w}), startScheduler(t, []*server{w}, "--max-in-flight", "1", "--max-queue", "0")
	for _, s := range []*server{s, full} {
		s.untilServed(t, long, 1)
	}
	beginAll(t, full, 1, endless)
	lone := startScheduler(t, []*server{{address: freeAddress(t)}})
	for name, c := range map[string]struct {
		on   *server
		in   *pb.GenerateRequest
		code codes.Code
	}{
		"a scheduler without workers":                {lone, ask(long, 3), codes.Unavailable},
		"a scheduler that knows no such model":       {s, ask("no-such-model", 3), codes.NotFound},
		"a worker that has no such model":            {w, ask("no-such-model", 3), codes.NotFound},
		"a worker's word that a scheduler passes on": {s, &pb.GenerateRequest{Model: long}, codes.InvalidArgument},
		"a scheduler with no place":                  {full, ask(long, 3), codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			header, trailer := responseOf(t, c.on, c.in)
			require.Equal(t, strconv.Itoa(int(c.code)), header.Get("Grpc-Status"), "%v %v", header, trailer)
			require.NotEmpty(t, header.Get("Grpc-Status-Details-Bin"))
			require.Empty(t, trailer)
		})
	}
	header, trailer := responseOf(t, startWorker(t, "w2", paced...), ask(long, 3))
	require.Empty(t, header.Get("Grpc-Status"))
	require.Equal(t, "0", trailer.Get("Grpc-Status"))
}
