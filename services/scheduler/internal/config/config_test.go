package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/app"
	"github.com/millrace/millrace/services/internal/certs/certstest"
	"github.com/millrace/millrace/services/scheduler/internal/config"
)

func parse(t *testing.T, args ...string) *config.Config {
	t.Helper()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	c := &config.Config{}
	c.Register(fs)
	require.NoError(t, fs.Parse(args))
	return c
}

func TestDefaultsAndAWorkerAreValid(t *testing.T) {
	c := parse(t, "--workers", "127.0.0.1:7071,dns:///workers.example:7071", "--workers", "unix:/tmp/w")
	require.ErrorContains(t, c.Validate(), `--workers "dns:///workers.example:7071": would be dialled in plaintext`)
	c.Transport.Insecure = true
	require.NoError(t, c.Validate())
	require.Equal(t, []string{"127.0.0.1:7071", "dns:///workers.example:7071", "unix:/tmp/w"}, c.Workers)
}

func TestValidateNamesTheFlagThatIsWrong(t *testing.T) {
	ok := []string{"--workers", "127.0.0.1:1"}
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no worker":                       {nil, "--workers names none"},
		"a worker without port":           {[]string{"--workers", "a"}, `"a": want host:port`},
		"an unknown scheme":               {[]string{"--workers", "xds:///a:1"}, "xds:///a:1"},
		"a listen without port":           {append(ok, "--listen", "a"), "--listen"},
		"a negative bound":                {append(ok, "--max-in-flight", "-1"), "--max-in-flight"},
		"no time for a load":              {append(ok, "--load-timeout", "0"), "--load-timeout"},
		"two days for a load":             {append(ok, "--load-timeout", "48h"), "--load-timeout"},
		"a silence of no time":            {append(ok, "--stale", "999ms"), "--stale"},
		"a silence of an hour":            {append(ok, "--stale", "1h"), "--stale"},
		"a negative queue":                {append(ok, "--max-queue", "-1"), "--max-queue"},
		"a short stall":                   {append(ok, "--send-stall", "999ms"), "--send-stall"},
		"a long stall":                    {append(ok, "--send-stall", "61m"), "--send-stall"},
		"a negative time in the queue":    {append(ok, "--max-queue-time", "-1s"), "--max-queue-time"},
		"days in the queue":               {append(ok, "--max-queue-time", "25h"), "--max-queue-time"},
		"a queue without end":             {append(ok, "--max-queue", "1048577"), "--max-queue"},
		"no call of vectors":              {append(ok, "--max-vector-calls", "0"), "--max-vector-calls"},
		"too many of them":                {append(ok, "--max-vector-calls", "1048577"), "--max-vector-calls"},
		"less than one training":          {append(ok, "--max-vector-bytes", "8388607"), "--max-vector-bytes"},
		"one port for two":                {append(ok, "--listen", "127.0.0.1:7070", "--metrics-listen", "127.0.0.1:7070"), "--metrics-listen"},
		"one port for the page":           {append(ok, "--metrics-listen", "127.0.0.1:9070", "--console-listen", "127.0.0.1:9070"), "--console-listen"},
		"a page for everybody":            {append(ok, "--console-listen", ":8070", "--insecure"), `--console-listen ":8070": would show other machines tokens`},
		"profiles for everybody":          {append(ok, "--pprof-listen", "0.0.0.0:6060"), "--pprof-listen"},
		"a grace of an hour":              {append(ok, "--worker-grace", "1h"), "--worker-grace"},
		"a drain of two hours":            {append(ok, "--drain-timeout", "2h"), "--drain-timeout"},
		"no time to fail over":            {append(ok, "--failover-wait", "0s"), "--failover-wait"},
		"a day to fail over":              {append(ok, "--failover-wait", "24h"), "--failover-wait"},
		"a third way":                     {append(ok, "--inexact-failover", "maybe"), "--inexact-failover"},
		"less than one request":           {append(ok, "--max-held-bytes", "1000"), "--max-held-bytes"},
		"too many processors":             {append(ok, "--processors", "5000"), "--processors"},
		"all of a machine's networks":     {append(ok, "--listen", ":7070"), `--listen ":7070": would serve other machines in plaintext`},
		"a worker elsewhere":              {[]string{"--workers", "a:1"}, `--workers "a:1": would be dialled in plaintext`},
		"a certificate that is not there": {append(ok, "--tls-cert", "/nowhere", "--tls-key", "/nowhere"), "--tls-cert: open /nowhere"},
		"a level that is not one":         {append(ok, "--log-level", "loud"), "--log-level"},
	} {
		t.Run(name, func(t *testing.T) {
			err := parse(t, tc.args...).Validate()
			require.ErrorIs(t, err, app.ErrUsage)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestProcessorsFlagStopsFollowingTheLoad(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	require.True(t, parse(t).FollowsLoad())
	require.False(t, parse(t, "--processors", "3").FollowsLoad())
	t.Setenv("GOMAXPROCS", "2")
	require.False(t, parse(t).FollowsLoad())
}

func TestEnvironmentStopsHeapTuning(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	require.True(t, parse(t).TunesHeap())
	t.Setenv("GOMEMLIMIT", "1GiB")
	require.False(t, parse(t).TunesHeap())
	t.Setenv("GOMEMLIMIT", "")
	t.Setenv("GOGC", "100")
	require.False(t, parse(t).TunesHeap())
}

func TestRemoteConsoleNeedsTLSAndIdentity(t *testing.T) {
	ca := certstest.New(t)
	own := certstest.Save(t, ca.Issue(t, "dns:scheduler"))
	keys := filepath.Join(t.TempDir(), "keys.yaml")
	require.NoError(t, os.WriteFile(keys, []byte("[]\n"), 0o600))
	there := []string{"--workers", "127.0.0.1:1", "--console-listen", "10.0.0.1:8070"}
	protected := slices.Concat(there, []string{"--tls-cert", own.Cert, "--tls-key", own.Key})
	require.ErrorContains(t, parse(t, protected...).Validate(), "--auth-keys or --tls-client-ca")
	require.NoError(t, parse(t, append(slices.Clone(protected), "--auth-keys", keys)...).Validate())
	require.NoError(t, parse(t, append(slices.Clone(protected), "--tls-client-ca", ca.File)...).Validate())
	require.ErrorContains(t, parse(t, append(there, "--auth-keys", keys)...).Validate(), "--tls-cert and --tls-key")
	for _, here := range []string{"127.0.0.1:8070", "localhost:8070", "[::1]:8070", "unix:/run/console"} {
		require.NoError(t, parse(t, "--workers", "127.0.0.1:1", "--console-listen", here).Validate(), here)
	}
}
