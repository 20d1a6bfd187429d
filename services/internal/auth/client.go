package auth

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/millrace/millrace/services/internal/filewatch"
	"github.com/millrace/millrace/services/internal/transport"
)

// tokenEnv names the source of a token that no flag names.
const tokenEnv = "MILLRACE_TOKEN"

// Shows reports whether there is a token to send.
func (f *Flags) Shows() bool { return f.TokenFile != "" || f.Token != "" }

// CheckDial refuses to send a token to another machine in plaintext, even with --insecure, because
// a reader could use it.
func (f *Flags) CheckDial(t *transport.Flags, flag, address string) error {
	if !f.Shows() || t.CA != "" || transport.IsLocal(address) {
		return nil
	}
	return fmt.Errorf("%s %q: is another machine, to which no token is sent in plaintext: give --tls-ca, or leave %s out", flag, address, f.tokenName())
}

// Dialer returns a function that returns the dial option for an address. Without a token the option
// does nothing.
func (f *Flags) Dialer(logger hclog.Logger) (func(address string) grpc.DialOption, error) {
	tokens, err := f.tokens(logger)
	if err != nil {
		return nil, err
	}
	return func(address string) grpc.DialOption {
		if tokens == nil {
			return grpc.EmptyDialOption{}
		}
		return grpc.WithPerRPCCredentials(&bearer{tokens, !transport.IsLocal(address)})
	}, nil
}

// bearer sends a token with every call.
type bearer struct {
	token  func() string
	remote bool // the server is on another machine
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b *bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token()}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b *bearer) RequireTransportSecurity() bool { return b.remote }

// tokens returns a function that returns the current token, or nil if none exists.
func (f *Flags) tokens(logger hclog.Logger) (func() string, error) {
	if f.TokenFile == "" {
		if f.Token == "" {
			return nil, nil
		}
		if err := checkToken(f.Token); err != nil {
			return nil, fmt.Errorf("%s: %w", tokenEnv, err)
		}
		return func() string { return f.Token }, nil
	}
	if info, err := os.Stat(f.TokenFile); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
		return f.readPipe()
	}
	logger = logger.Named("auth")
	source, err := filewatch.New(filewatch.Config[string, string]{
		Read:    func() (string, error) { return readFile(f.tokenName(), f.TokenFile) },
		Parse:   f.parse,
		Changed: func(string) { logger.Info("token read again", "file", f.TokenFile) },
		Failed:  func(err error) { logger.Error("token cannot be used, the one read before stays", "error", err) },
	})
	if err != nil {
		return nil, err
	}
	return source.Current, nil
}

// readPipe reads once the token that another program writes: --token-file <(pass show millrace).
func (f *Flags) readPipe() (func() string, error) {
	text, err := os.ReadFile(f.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.tokenName(), err)
	}
	token, err := f.parse(string(text))
	return func() string { return token }, err
}

// parse returns the token in a file's text.
func (f *Flags) parse(text string) (string, error) {
	token := strings.TrimRight(text, "\r\n")
	if err := checkToken(token); err != nil {
		return "", fmt.Errorf("%s %s: %w", f.tokenName(), f.TokenFile, err)
	}
	return token, nil
}

// tokenName names the source of the token.
func (f *Flags) tokenName() string {
	if f.TokenFile == "" {
		return tokenEnv
	}
	return "--" + f.tokenFlag
}

var _ credentials.PerRPCCredentials = (*bearer)(nil)
