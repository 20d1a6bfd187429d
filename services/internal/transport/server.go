package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// errSide: credentials of one side were used on the other.
var errSide = errors.New("credentials are for the other side of a connection")

// Serve gives a server the bound of its connections, its credentials and, behind the chain's own interceptors, the rule of who may
// call. It is plaintext where the flags name no certificate.
func (f *Flags) Serve(cfg *rpc.ServerConfig, logger hclog.Logger) error {
	cfg.MaxConnectionsPerAddress = f.MaxConnections
	if f.Cert == "" {
		return nil
	}
	from, err := newSource(f.serverFiles(), logger)
	if err != nil {
		return err
	}
	allowed, err := ParseSANs(f.ClientSANs)
	if err != nil {
		return fmt.Errorf("--tls-client-san: %w", err)
	}
	cfg.Credentials = &serverCredentials{source: from, mutual: f.ClientCA != "", allowed: allowed, refusals: refusals{logger: from.logger},
		computing: make(chan struct{}, handshakesAtOnce)}
	if len(allowed) > 0 {
		cfg.Interceptors = append(cfg.Interceptors, allow(cfg.Domain))
	}
	return nil
}

// serverCredentials make a server's connections of what the files hold when each is made.
type serverCredentials struct {
	source   *source
	mutual   bool
	allowed  []SAN
	refusals refusals
	// computing has a place for each handshake that computes.
	computing chan struct{}
}

// caller is what a server knows of who is at the other end of a connection.
type caller struct {
	credentials.TLSInfo
	allowed bool // its certificate has one of the names, or none is wanted
}

func (c *serverCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	cfg := c.source.Current().server(c.mutual)
	hello := false
	held := &lingering{Conn: raw}
	own := &turn{lingering: held, of: c.computing}
	defer own.end()
	cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		hello = true
		own.take()
		return nil, nil
	}
	conn, info, err := credentials.NewTLS(cfg).ServerHandshake(own)
	if err != nil {
		if !errors.Is(err, io.EOF) { // a connection that says nothing, as probes of the port make them
			c.refusals.tell(raw.RemoteAddr(), err)
		}
		if hello { // else it speaks no TLS and would not understand
			held.linger()
		} else {
			_ = raw.Close() // nobody is left to tell
		}
		return nil, nil, err
	}
	held.done = true
	who := caller{TLSInfo: info.(credentials.TLSInfo), allowed: len(c.allowed) == 0}
	if chain := who.State.PeerCertificates; !who.allowed && len(chain) > 0 {
		who.allowed = hasOne(chain[0], c.allowed)
	}
	return conn, who, nil
}

// server is how a connection is made of the material, mutual with a certificate of the caller's.
func (m material) server(mutual bool) *tls.Config {
	cfg := &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{*m.certificate},
		// Each connection is verified whole, by the authorities of its own moment.
		SessionTicketsDisabled: true,
	}
	if mutual {
		cfg.ClientAuth, cfg.ClientCAs = tls.RequireAndVerifyClientCert, m.authorities
	}
	return cfg
}

func (*serverCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errSide
}

func (*serverCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone is the credentials themselves: nothing of them changes but what the files hold, and that for all.
func (c *serverCredentials) Clone() credentials.TransportCredentials { return c }

func (*serverCredentials) OverrideServerName(string) error { return errSide }

// allow refuses every method to callers whose certificate has none of the names. They are refused call by call and not in the
// handshake: so they learn why, and do not take the server for one that is down.
func allow(domain string) grpc.StreamServerInterceptor {
	return func(impl any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		from, _ := peer.FromContext(stream.Context())
		who, _ := from.AuthInfo.(caller)
		if who.allowed || rpc.FromWithin(stream.Context()) {
			return next(impl, stream)
		}
		names := namesAmong(who.State.PeerCertificates)
		return rpc.Fault{
			Code: codes.PermissionDenied, Domain: domain, Reason: reason.CallerNotAllowed,
			Message:  notAllowed(names).Error(),
			Metadata: map[string]string{"names": names},
		}.Err()
	}
}
