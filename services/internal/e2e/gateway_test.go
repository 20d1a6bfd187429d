package e2e

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	orcapb "github.com/cncf/xds/go/xds/data/orca/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/certs/certstest"
	"github.com/millrace/millrace/services/internal/rpc"
)

func TestAProxyPassesTokensOn(t *testing.T) {
	t.Parallel()
	k := keep(t, 1, nil)
	p := startProxy(t, []*server{k.scheduler})
	good(t, &server{infer: pb.NewInferenceServiceClient(dial(t, p.address, k.ofScheduler.as(t, "operator")))}, long)
	require.Equal(t, codes.Unauthenticated, faultOf(generate(within(t), p.infer, ask(long, 3)).err).code)
	k.requireNoToken(t, p.log.String())
}

// A proxy that terminates TLS represents its callers: a server sees the proxy's certificate, and
// the proxy those of the callers.
func TestSchedulerSeesTheProxysCertificate(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	g.files["proxy"] = certstest.Save(t, g.ca.Issue(t, "dns:proxy", "ip:127.0.0.1"))
	w := startWorker(t, "w1", paced...)
	s := serveTo(t, g.as(t, "proxy"), schedulerBinary, slices.Concat(g.serving("scheduler"), patient,
		[]string{"--workers", w.address, "--tls-client-san", "dns:proxy"})...)
	s.untilServed(t, long, 1)
	require.Error(t, generate(within(t), pb.NewInferenceServiceClient(dial(t, s.address, g.client)), ask(long, 3)).err, "the server accepts only the proxy's certificate")

	front := &server{address: freeAddress(t)}
	startProxy(t, []*server{s}, fmt.Sprintf("listen %s ssl http2", front.address), "ssl_certificate "+g.files["proxy"].Cert,
		"ssl_certificate_key "+g.files["proxy"].Key, "ssl_client_certificate "+g.ca.File, "ssl_verify_client on", "ssl_protocols TLSv1.3",
		fmt.Sprintf(`location /millrace.v1 {
			grpc_pass grpcs://servers;
			grpc_ssl_certificate %s;
			grpc_ssl_certificate_key %s;
			grpc_ssl_trusted_certificate %s;
			grpc_ssl_protocols TLSv1.3;
			grpc_ssl_verify on;
			grpc_ssl_name scheduler;
		}
		keepalive_timeout 60s`, g.files["proxy"].Cert, g.files["proxy"].Key, g.ca.File))
	front.creds = g.client
	front.connect(t)
	good(t, front, long)
	front.creds = nil
	front.connect(t)
	require.Error(t, generate(within(t), front.infer, ask(long, 3)).err, "the proxy requires a certificate")
}

func TestAProxyPassesOnTheLoadReportsOfAScheduler(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	s := startScheduler(t, []*server{w}, "--load-reports")
	s.untilServed(t, long, 1)
	stream, err := startProxy(t, []*server{s}).infer.Generate(within(t), ask(long, 3))
	for err == nil {
		_, err = stream.Recv()
	}
	require.ErrorIs(t, err, io.EOF)
	raw := stream.Trailer().Get(rpc.LoadReportPrefix + "-bin")
	require.Len(t, raw, 1)
	require.NoError(t, proto.Unmarshal([]byte(raw[0]), &orcapb.OrcaLoadReport{}))
}

// A prompt of many steps of a second is silent for longer than the proxy allows, which is eight
// seconds. Progress events end the silence, so that the call is still open after twelve steps.
func TestProxyKeepsPromptsWithProgress(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", "--device", "sim:step=1s,prefill=0s,decode=0s", "--load", long)
	p := startProxy(t, []*server{w}, "grpc_read_timeout 8s", "grpc_next_upstream off")
	for _, progress := range []bool{true, false} {
		in := ask(long, 1)
		in.Input = &pb.GenerateRequest_Prompt{Prompt: strings.Repeat(fmt.Sprint("once upon a time ", progress, " "), 4000)}
		in.Response = &pb.ResponseOptions{Progress: ptr(progress)}
		ctx, leave := context.WithCancel(within(t))
		stream, err := p.infer.Generate(ctx, in)
		for range 12 {
			if err == nil {
				_, err = stream.Recv()
			}
		}
		leave()
		require.Equal(t, progress, err == nil, "%v", err)
		w.untilIdle(t)
	}
}
