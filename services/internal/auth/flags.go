package auth

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/services/internal/filewatch"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Flags configure keys and tokens. The zero value allows every call and sends no token.
type Flags struct {
	// Keys is the file of a server's keys. "": no keys.
	Keys string
	// TokenFile is the file of the token that a client sends. "": Token.
	TokenFile string
	// Token is the token itself, from the environment. It is never a flag, because every user of
	// the machine can read a command line.
	Token string

	tokenFlag string // the flag of TokenFile
}

// String omits the token, for logs that print a whole configuration.
func (f Flags) String() string { return fmt.Sprintf("{Keys:%s TokenFile:%s}", f.Keys, f.TokenFile) }

// AddServerFlags adds the flags of a server to fs.
func (f *Flags) AddServerFlags(fs *pflag.FlagSet) {
	fs.StringVar(&f.Keys, "auth-keys", f.Keys, "file of the keys of callers, with their rights and limits; millrace keys makes its lines (default: every caller has every right)")
}

// AddClientFlags adds the flag of a client to fs, under the given name.
func (f *Flags) AddClientFlags(fs *pflag.FlagSet, name, whose string) {
	f.tokenFlag = name
	fs.StringVar(&f.TokenFile, name, f.TokenFile, "file of the token to show to "+whose+", over TLS or on this machine alone; read again when it changes")
}

// Check refuses unusable files.
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

// Serve puts a guard in front of every method of a server, after the existing interceptors. It does
// nothing and returns nil if the flags name no file of keys.
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

// keySource returns the source of the file of keys.
func (f *Flags) keySource(logger hclog.Logger) (*filewatch.Source[string, *Keys], error) {
	logger = logger.Named("auth")
	return filewatch.New(filewatch.Config[string, *Keys]{
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
	text, err := filewatch.File(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	return text, nil
}
