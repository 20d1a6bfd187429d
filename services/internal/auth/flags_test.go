package auth_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/auth"
	"github.com/millrace/millrace/services/internal/certs/certstest"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/internal/transport"
)

// file returns the path of a file with the given text.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// parse parses the command line of a program that is server and client.
func parse(t *testing.T, args ...string) *auth.Flags {
	t.Helper()
	f, fs := &auth.Flags{}, pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.AddServerFlags(fs)
	f.AddClientFlags(fs, "worker-token-file", "workers")
	require.NoError(t, fs.Parse(args))
	return f
}

func TestCheckNamesFlagAndFile(t *testing.T) {
	require.NoError(t, parse(t).Check())
	bad, short, gone := file(t, "- {id: a}\n"), file(t, "secret\n"), filepath.Join(t.TempDir(), "gone")
	for name, tc := range map[string]struct{ args, want []string }{
		"keys that are wrong":     {[]string{"--auth-keys", bad}, []string{"--auth-keys " + bad, "line 1: hash"}},
		"keys that are not there": {[]string{"--auth-keys", gone}, []string{"--auth-keys", gone}},
		"a token that is short":   {[]string{"--worker-token-file", short}, []string{"--worker-token-file " + short, "want 32 to 4096 printable"}},
		"no token":                {[]string{"--worker-token-file", gone}, []string{"--worker-token-file", gone}},
		"both":                    {[]string{"--worker-token-file", short, "--auth-keys", bad}, []string{"line 1: hash", "want 32 to 4096"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := parse(t, tc.args...).Check()
			for _, want := range tc.want {
				require.ErrorContains(t, err, want)
			}
			require.NotContains(t, err.Error(), "secret")
		})
	}
	err := (&auth.Flags{Token: "short"}).Check()
	require.ErrorContains(t, err, "MILLRACE_TOKEN: want 32")
	require.NotContains(t, err.Error(), "short")
}

func TestFlagsStringHidesTheToken(t *testing.T) {
	f := auth.Flags{Keys: "keys.yaml", Token: auth.NewToken()}
	for _, verb := range []string{"%v", "%+v", "%s"} {
		text := fmt.Sprintf(verb, struct{ Auth auth.Flags }{f})
		require.NotContains(t, text, f.Token)
		require.Contains(t, text, "keys.yaml")
	}
}

func TestTokenNeedsTLSForOtherMachines(t *testing.T) {
	f, none := &auth.Flags{Token: auth.NewToken()}, &auth.Flags{}
	for address, here := range map[string]bool{
		"localhost:7070": true, "127.0.0.1:1": true, "unix:/run/s": true, "[::1]:7070": true, "10.0.0.1:7070": false, "workers:7071": false,
		"dns:///workers:7071": false,
	} {
		plain, tls := &transport.Flags{Insecure: true}, &transport.Flags{CA: transport.System}
		require.NoError(t, f.CheckDial(tls, "--target", address))
		require.NoError(t, none.CheckDial(plain, "--target", address))
		if err := f.CheckDial(plain, "--target", address); here {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "no token is sent in plaintext")
			require.NotContains(t, err.Error(), f.Token)
		}
		// gRPC itself refuses it too if CheckDial was not called.
		option, err := f.Dialer(hclog.NewNullLogger())
		require.NoError(t, err)
		conn, err := rpc.Dial(address, "test", option(address))
		require.Equal(t, here, err == nil, "%s: %v", address, err)
		if err == nil {
			require.NoError(t, conn.Close())
		}
	}
}

func TestKeysAndTokensAreReloaded(t *testing.T) {
	ca := certstest.New(t)
	own := certstest.Save(t, ca.Issue(t, "ip:127.0.0.1"))
	old, next := auth.NewToken(), auth.NewToken()
	keys := func(tokens ...string) []byte {
		key := auth.Key{ID: "web", Rights: []auth.Right{auth.Health}}
		for _, token := range tokens {
			key.Hashes = append(key.Hashes, auth.HashOf(token))
		}
		line, err := key.Line()
		require.NoError(t, err)
		return []byte(line)
	}
	keyFile, tokenFile := file(t, string(keys(old))), file(t, old+"\n")
	cfg, secure := rpc.ServerConfig{Domain: rpc.WorkerDomain}, &transport.Flags{Cert: own.Cert, Key: own.Key, CA: ca.File}
	require.NoError(t, secure.Serve(&cfg, rpctest.Logger(t)))
	guard, err := (&auth.Flags{Keys: keyFile}).Serve(&cfg, rpctest.Logger(t))
	require.NoError(t, err)
	lis, err := rpc.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	rpctest.Serve(t, rpc.NewServer(cfg, rpctest.Logger(t)), lis)
	creds, err := secure.Dialer(rpctest.Logger(t))
	require.NoError(t, err)
	dial := func(f *auth.Flags) healthpb.HealthClient {
		option, err := f.Dialer(rpctest.Logger(t))
		require.NoError(t, err)
		conn, err := rpc.Dial(lis.Addr().String(), "test", grpc.WithTransportCredentials(creds), option(lis.Addr().String()))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, conn.Close()) })
		return healthpb.NewHealthClient(conn)
	}
	ask := func(c healthpb.HealthClient) error {
		_, err := c.List(t.Context(), &healthpb.HealthListRequest{})
		return err
	}
	follows, stays, stranger := dial(parse(t, "--worker-token-file", tokenFile)), dial(&auth.Flags{Token: old}), dial(&auth.Flags{})
	require.NoError(t, ask(follows))
	require.NoError(t, ask(stays))
	require.Equal(t, reason.NoToken, rpc.Reason(ask(stranger)))

	certstest.Write(t, keyFile, []byte("- {id: broken"))
	until := func(holds func() bool) { require.Eventually(t, holds, time.Minute, 50*time.Millisecond) }
	before := time.Now()
	until(func() bool { require.NoError(t, ask(stays)); return time.Since(before) > 1500*time.Millisecond })
	certstest.Write(t, keyFile, keys(old, next))
	fresh := dial(&auth.Flags{Token: next})
	until(func() bool { require.NoError(t, ask(stays)); return ask(fresh) == nil })
	certstest.Write(t, tokenFile, []byte(next))
	// It sends the new token as soon as the old one is no longer returned.
	calls := guard.Usage()[0].Calls
	require.Positive(t, calls)
	before = time.Now()
	until(func() bool { require.NoError(t, ask(follows)); return time.Since(before) > 1500*time.Millisecond })
	certstest.Write(t, keyFile, keys(next))
	until(func() bool { require.NoError(t, ask(follows)); return status.Code(ask(stays)) == codes.Unauthenticated })
	require.Equal(t, reason.UnknownToken, rpc.Reason(ask(stays)))
}

func TestServeWithoutKeysAddsNoGuard(t *testing.T) {
	cfg := rpc.ServerConfig{}
	guard, err := (&auth.Flags{}).Serve(&cfg, rpctest.Logger(t))
	require.NoError(t, err)
	require.Nil(t, guard)
	require.Empty(t, cfg.Interceptors)
	meter := auth.MeterOf(t.Context())
	meter.Add(7)
	require.Nil(t, meter)
}
