package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/services/gateway/internal/target"
	"github.com/millrace/millrace/services/internal/app"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/telemetry"
	"github.com/millrace/millrace/services/internal/transport"
)

// Bounds of flags.
const (
	minBodyBytes   = 64 << 10
	maxConnections = 1 << 20
)

// Config is the gateway's configuration.
type Config struct {
	app.Flags
	// Targets are host:port or unix:PATH, or one dns:///name:port; at least one.
	Targets []string
	// Origins are the web origins whose pages may make requests; "*" is any.
	Origins []string
	// MaxBodyBytes bounds the body of a request; [64 KiB, 16 MiB].
	MaxBodyBytes int64
	// MaxHeldBytes bounds the bodies of requests that have no answer yet; at least two of the
	// largest.
	MaxHeldBytes int64
	// MaxConnections bounds the connections of all clients together; [1, 1048576].
	MaxConnections int
	// Strict refuses fields of requests that would be skipped.
	Strict bool
	// ResumeKeyFile has the key of the ids of events; "": a random key.
	ResumeKeyFile string
}

// Register puts the flags on fs and reads the environment. After fs is parsed, call Validate.
func (c *Config) Register(fs *pflag.FlagSet) {
	c.Telemetry = telemetry.FromEnvironment(os.Getenv)
	c.Flags.Register(fs, app.Defaults{Listen: "127.0.0.1:8080", MetricsExample: "127.0.0.1:9080", HTTP: true})
	c.Transport.AddClientFlags(fs)
	fs.StringSliceVar(&c.Targets, "target", nil, "schedulers or workers, separated by commas: host:port or unix:PATH, or one dns:///name:port for all addresses of a name")
	fs.StringSliceVar(&c.Origins, "cors-origins", nil, "web origins whose pages may make requests, such as https://chat.example, separated by commas; *: any (default: none)")
	fs.Int64Var(&c.MaxBodyBytes, "max-body-bytes", rpc.DefaultMaxReceiveBytes, "bytes of the body of a request; larger ones are refused")
	fs.Int64Var(&c.MaxHeldBytes, "max-held-bytes", 256<<20, "bytes of bodies above 32 KiB that are held until their answers begin; requests beyond it are refused")
	fs.IntVar(&c.MaxConnections, "max-connections", 16384, "connections of all clients together; more wait")
	fs.BoolVar(&c.Strict, "strict", false, "refuse fields of requests that have no effect, instead of naming them in the header millrace-skipped")
	fs.StringVar(&c.ResumeKeyFile, "resume-key-file", "", "file with 32 to 4096 random bytes, which gateways share so that each continues the event streams of the others (default: a random key, so that only this process continues its streams)")
}

// Validate returns everything that is wrong, each error naming its flag. They wrap app.ErrUsage.
func (c *Config) Validate() error {
	wrong := []error{c.Check("")}
	refuse := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	if err := target.CheckTargets(c.Targets); err != nil {
		refuse("--target %w", err)
	}
	for _, t := range c.Targets {
		if err := c.Transport.CheckDial("--target", t); err != nil {
			refuse("%w", err)
		}
	}
	for _, origin := range c.Origins {
		if u, err := url.Parse(origin); origin != "*" && (err != nil || u.Scheme == "" || u.Host == "" || origin != u.Scheme+"://"+u.Host) {
			refuse("--cors-origins %q: want an origin such as https://chat.example, or *", origin)
		}
	}
	if c.MaxBodyBytes < minBodyBytes || c.MaxBodyBytes > rpc.DefaultMaxReceiveBytes {
		refuse("--max-body-bytes is %d: must be in [%d, %d]", c.MaxBodyBytes, minBodyBytes, rpc.DefaultMaxReceiveBytes)
	}
	if c.MaxHeldBytes < 2*c.MaxBodyBytes {
		refuse("--max-held-bytes is %d: must be at least %d, two bodies of the largest", c.MaxHeldBytes, 2*c.MaxBodyBytes)
	}
	if c.MaxConnections < 1 || c.MaxConnections > maxConnections {
		refuse("--max-connections is %d: must be in [1, %d]", c.MaxConnections, maxConnections)
	}
	if c.DrainTimeout < 0 || c.DrainTimeout > time.Hour {
		refuse("--drain-timeout is %v: must be in [0, 1h]", c.DrainTimeout)
	}
	return app.Usage(errors.Join(wrong...))
}

// Bounds of a key file. A shorter key could be guessed.
const minKeyBytes, maxKeyBytes = 32, 4096

// ResumeKey returns the key of ResumeKeyFile, or nil if there is none. White space around it does not count.
func (c *Config) ResumeKey() ([]byte, error) {
	if c.ResumeKeyFile == "" {
		return nil, nil
	}
	f, err := os.Open(c.ResumeKeyFile)
	if err != nil {
		return nil, fmt.Errorf("--resume-key-file: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	raw, err := io.ReadAll(io.LimitReader(f, maxKeyBytes+1))
	if err != nil {
		return nil, fmt.Errorf("--resume-key-file: %w", err)
	}
	key := bytes.TrimSpace(raw)
	if len(key) < minKeyBytes || len(raw) > maxKeyBytes {
		return nil, fmt.Errorf("--resume-key-file %s: must have %d to %d bytes: make one with openssl rand -hex 32", c.ResumeKeyFile, minKeyBytes, maxKeyBytes)
	}
	return key, nil
}

// HidesTokens reports whether the tokens of clients are not passed on: a target is another machine
// and is dialled in plaintext, so that others could read and use them.
func (c *Config) HidesTokens() bool {
	for _, t := range c.Targets {
		if c.Transport.CA == "" && !transport.IsLocal(t) {
			return true
		}
	}
	return false
}

// Fields returns the configuration as log fields.
func (c *Config) Fields() []any {
	return []any{
		"listen", c.Listen, "target", c.Targets, "cors_origins", c.Origins, "strict", c.Strict, "resume_key_file", c.ResumeKeyFile,
		"max_body_bytes", c.MaxBodyBytes, "max_held_bytes", c.MaxHeldBytes, "max_connections", c.MaxConnections,
		"drain_timeout", c.DrainTimeout, "send_stall", c.SendStall,
		"metrics_listen", c.MetricsListen, "metrics_tls", c.MetricsTLS, "pprof_listen", c.PprofListen,
		"traces", c.Telemetry.Traces, "measures_sent", c.Telemetry.Metrics, "log_level", c.LogLevel, "log_json", c.LogJSON,
		"tls_cert", c.Transport.Cert, "tls_ca", c.Transport.CA, "tls_client_ca", c.Transport.ClientCA, "insecure", c.Transport.Insecure,
	}
}
