package ingress

import (
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"math/rand/v2"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// talk returns the bytes of a client: header blocks of several frames, and bodies.
func talk(t *testing.T, r *rand.Rand) []byte {
	t.Helper()
	var out bytes.Buffer
	out.WriteString(http2.ClientPreface)
	fr := http2.NewFramer(&out, nil)
	require.NoError(t, fr.WriteSettings())
	for n := range uint32(20) {
		stream := 2*n + 1
		require.NoError(t, fr.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: make([]byte, r.IntN(40))}))
		for range r.IntN(3) {
			require.NoError(t, fr.WriteContinuation(stream, false, make([]byte, r.IntN(40))))
		}
		require.NoError(t, fr.WriteContinuation(stream, true, []byte{1}))
		for range r.IntN(4) {
			require.NoError(t, fr.WriteData(stream, false, make([]byte, r.IntN(3000))))
		}
	}
	return out.Bytes()
}

// TestResetsStandBetweenFrames checks that a reader gets every frame of the client in order, and
// the reset frames between them, but not within a header block.
func TestResetsStandBetweenFrames(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			sent := talk(t, r)
			near, far := net.Pipe()
			c := watch(near, false, func() {}, func(error) {})
			go func() {
				for rest := sent; len(rest) > 0; {
					n := min(len(rest), 1+r.IntN(700))
					_, _ = far.Write(rest[:n])
					rest = rest[n:]
					time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
				}
				time.Sleep(time.Second)
				_ = far.Close()
			}()
			go func() {
				for stream := range uint32(30) {
					c.reset(1000 + stream)
					time.Sleep(2 * time.Millisecond)
				}
			}()
			got, err := io.ReadAll(c)
			require.NoError(t, err)
			body := bytes.NewReader(got[prefaceBytes:])
			fr := http2.NewFramer(io.Discard, body) // refuses a frame within a header block
			var kept []byte
			var reset []uint32
			for from := 0; body.Len() > 0; {
				_, err := fr.ReadFrame()
				to := int(body.Size()) - body.Len()
				var stream http2.StreamError
				if errors.As(err, &stream) {
					reset = append(reset, stream.StreamID)
				} else {
					require.NoError(t, err)
					kept = append(kept, got[prefaceBytes:][from:to]...)
				}
				from = to
			}
			require.Equal(t, sent[prefaceBytes:], kept)
			require.Len(t, reset, 30)
			for i, stream := range reset {
				require.EqualValues(t, 1000+i, stream)
			}
			require.False(t, c.resets.pending.Load())
		})
	}
}

// TestResetProlongsNoHeaders checks that a reset waits for the end of a header block, whose own
// timeout still applies.
func TestResetProlongsNoHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		c := watch(near, false, func() {}, func(error) {})
		go func() {
			fr := http2.NewFramer(far, nil)
			_, _ = io.WriteString(far, http2.ClientPreface)
			_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}})
			time.Sleep(headersTimeout - time.Second)
			c.reset(1)
		}()
		begun := time.Now()
		_, err := io.ReadAll(c)
		require.ErrorIs(t, err, ErrSlowHeaders)
		require.Equal(t, headersTimeout, time.Since(begun))
		_ = far.Close()
	})
}

// selfSigned returns a certificate for 127.0.0.1.
func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	is := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(nil, is, is, public, private)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private, Leaf: leaf}
}

// TestResetEndsOneStreamOfAConnection checks that the transport drops what it has queued, and that
// the connection keeps serving.
func TestResetEndsOneStreamOfAConnection(t *testing.T) {
	cert := selfSigned(t)
	roots := x509.NewCertPool()
	roots.AddCert(cert.Leaf)
	for name, creds := range map[string][2]credentials.TransportCredentials{
		"plaintext": {nil, insecure.NewCredentials()},
		"TLS":       {credentials.NewServerTLSFromCert(&cert), credentials.NewClientTLSFromCert(roots, "")},
	} {
		t.Run(name, func(t *testing.T) {
			over := make(chan struct{}, 1)
			conn := serveWith(t, creds[0], creds[1], func(_ any, stream grpc.ServerStream) error {
				a := FromContext(stream.Context())
				if metadata.ValueFromIncomingContext(stream.Context(), "reset") == nil {
					return nil
				}
				m := make([]byte, 4<<20)
				if err := stream.SendMsg(&m); err != nil {
					return err
				}
				a.Reset()
				<-stream.Context().Done()
				over <- struct{}{}
				return nil
			})
			stream, err := conn.NewStream(metadata.AppendToOutgoingContext(t.Context(), "reset", "yes"),
				&grpc.StreamDesc{ServerStreams: true}, "/any/Method", grpc.ForceCodecV2(raw{}))
			require.NoError(t, err)
			require.NoError(t, stream.CloseSend())
			<-over
			var m []byte
			err = stream.RecvMsg(&m)
			require.Equal(t, codes.Internal, status.Code(err), "%v", err)
			require.NoError(t, call(t.Context(), conn))
		})
	}
}
