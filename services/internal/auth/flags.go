package auth

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/services/internal/reread"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Flags are what a program was told about keys and tokens. The zero value lets everybody do everything, and shows nothing.
type Flags struct {
	// Keys is the file of a server's keys. Empty: it has none.
	Keys string
	// TokenFile is a file of the token that a client shows. Empty: Token.
	TokenFile string
	// Token is the token itself, from the environment: never from the command line, which everybody on the machine can read.
	Token string

	tokenFlag string // the flag of TokenFile
}

// String is for a log that prints a whole configuration: it has no token.
func (f Flags) String() string { return fmt.Sprintf("{Keys:%s TokenFile:%s}", f.Keys, f.TokenFile) }

// Serves puts the flags of a server on fs.
func (f *Flags) Serves(fs *pflag.FlagSet) {
	fs.StringVar(&f.Keys, "auth-keys", f.Keys, "file of the keys of those who may call, with their rights and limits; millrace keys makes its lines (default: anyone may do everything)")
}

// Dials puts the flag of a client on fs, under a name.
func (f *Flags) Dials(fs *pflag.FlagSet, name, whose string) {
	f.tokenFlag = name
	fs.StringVar(&f.TokenFile, name, f.TokenFile, "file of the token to show to "+whose+", over TLS or on this machine alone; read again when it changes")
}

// Check refuses files that cannot be used.
func (f *Flags) Check() error {
	var wrong []error
	if f.Keys != "" {
		if _, err := f.keySource(hclog.NewNullLogger()); err != nil {
			wrong = append(wrong, err)
		}
	}
	if _, err := f.tokens(hclog.NewNullLogger()); err != nil {
		wrong = append(wrong, err)
	}
	return errors.Join(wrong...)
}

// Serve stands a guard before every method of a server, behind the interceptors that are there. It does nothing and returns nil where
// the flags name no file of keys.
func (f *Flags) Serve(cfg *rpc.ServerConfig, logger hclog.Logger) (*Guard, error) {
	if f.Keys == "" {
		return nil, nil
	}
	source, err := f.keySource(logger)
	if err != nil {
		return nil, err
	}
	g := newGuard(cfg.Domain, source.Current, time.Now, func(after time.Duration, call func()) { time.AfterFunc(after, call) })
	cfg.Interceptors = append(cfg.Interceptors, g.interceptors()...)
	return g, nil
}

// keySource is the file of keys.
func (f *Flags) keySource(logger hclog.Logger) (*reread.Source[string, *Keys], error) {
	logger = logger.Named("auth")
	return reread.New(reread.Config[string, *Keys]{
		Read: func() (string, error) { return readFile("--auth-keys", f.Keys) },
		Parse: func(text string) (*Keys, error) {
			keys, err := Parse(text)
			if err != nil {
				return nil, fmt.Errorf("--auth-keys %s: %w", f.Keys, err)
			}
			return keys, nil
		},
		Changed: func(k *Keys) { logger.Info("keys read again", "file", f.Keys, "keys", len(k.All())) },
		Failed:  func(err error) { logger.Error("keys cannot be used, those read before stay", "error", err) },
	})
}

// readFile reads the file that a flag names.
func readFile(flag, path string) (string, error) {
	text, err := reread.File(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	return text, nil
}
