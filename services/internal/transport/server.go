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

	"github.com/millrace/millrace/services/internal/ratelog"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// errSide reports that credentials of one side were used on the other.
var errSide = errors.New("credentials are for the other side of a connection")

// Serve configures a server: the bound of its connections, its credentials and, after the chain's
// own interceptors, the rule of which callers are allowed. The server is plaintext if the flags
// name no certificate.
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
		slots: make(chan struct{}, maxHandshakes)}
	if len(allowed) > 0 {
		cfg.Interceptors = append(cfg.Interceptors, allow(cfg.Domain))
	}
	return nil
}

// serverCredentials read their files when a connection is made.
type serverCredentials struct {
	source   *source
	mutual   bool
	allowed  []SAN
	refusals refusals
	// slots is the semaphore of handshakes that compute.
	slots chan struct{}
}

// caller is the AuthInfo of a connection.
type caller struct {
	credentials.TLSInfo
	allowed bool // the certificate has an allowed name, or all are allowed
}

func (c *serverCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	cfg := c.source.Current().server(c.mutual)
	hello := false
	linger := &lingeringConn{Conn: raw}
	slot := &handshakeConn{lingeringConn: linger, slots: c.slots}
	defer slot.release()
	cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		hello = true
		slot.acquire()
		return nil, nil
	}
	conn, info, err := credentials.NewTLS(cfg).ServerHandshake(slot)
	if err != nil {
		if !errors.Is(err, io.EOF) { // a connection that sends nothing, for example a port probe
			c.refusals.log(raw.RemoteAddr(), err)
		}
		if hello { // else it does not speak TLS and would not understand
			linger.closeLater()
		} else {
			_ = raw.Close() // nothing handles the error
		}
		return nil, nil, err
	}
	linger.established = true
	who := caller{TLSInfo: info.(credentials.TLSInfo), allowed: len(c.allowed) == 0}
	if chain := who.State.PeerCertificates; !who.allowed && len(chain) > 0 {
		who.allowed = hasOne(chain[0], c.allowed)
	}
	return conn, who, nil
}

// server returns the configuration of a connection. mutual requires a certificate of the caller.
func (m material) server(mutual bool) *tls.Config {
	cfg := &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{*m.certificate},
		// Every connection is verified in full, by the authorities of that moment.
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

// Clone returns c, because only the files change, and they do for all connections.
func (c *serverCredentials) Clone() credentials.TransportCredentials { return c }

func (*serverCredentials) OverrideServerName(string) error { return errSide }

// allow refuses every call of callers whose certificate has no allowed name. It refuses calls and
// not the handshake, so that callers get the reason and do not consider the server down.
func allow(domain string) grpc.StreamServerInterceptor {
	return func(impl any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		from, _ := peer.FromContext(stream.Context())
		who, _ := from.AuthInfo.(caller)
		if who.allowed || rpc.IsInProcess(stream.Context()) {
			return next(impl, stream)
		}
		names := namesAmong(who.State.PeerCertificates)
		return rpc.Error{
			Code: codes.PermissionDenied, Domain: domain, Reason: reason.CallerNotAllowed,
			Message:  notAllowed(names).Error(),
			Metadata: map[string]string{"names": names},
		}.Err()
	}
}

// refusals logs refused connections at a limited rate.
type refusals struct {
	logger hclog.Logger
	lines  ratelog.Limiter
}

// log writes why a connection was refused.
func (r *refusals) log(from net.Addr, err error) {
	suppressed, ok := r.lines.Allow("")
	if !ok {
		return
	}
	fields := []any{"peer", from.String(), "error", err}
	if suppressed > 0 {
		fields = append(fields, "refused_without_a_line", suppressed)
	}
	r.logger.Warn("connection refused", fields...)
}
