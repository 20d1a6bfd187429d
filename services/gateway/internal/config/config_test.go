package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/gateway/internal/config"
	"github.com/millrace/millrace/services/internal/app"
)

func parse(t *testing.T, args ...string) *config.Config {
	t.Helper()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	c := &config.Config{}
	c.Register(fs)
	require.NoError(t, fs.Parse(args))
	return c
}

func TestDefaultsAndATargetAreValid(t *testing.T) {
	for _, targets := range []string{"127.0.0.1:7070", "127.0.0.1:7070,localhost:7170,unix:/run/millrace", "dns:///localhost:7070"} {
		require.NoError(t, parse(t, "--target", targets, "--cors-origins", "https://chat.example,http://localhost:3000,*").Validate(), targets)
	}
}

func TestValidateNamesTheFlagThatIsWrong(t *testing.T) {
	ok := []string{"--target", "127.0.0.1:1"}
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no target":                   {nil, "--target names no server"},
		"a target without port":       {[]string{"--target", "a"}, `--target "a": want host:port`},
		"a name among addresses":      {[]string{"--target", "127.0.0.1:1,dns:///localhost:1"}, "give it alone"},
		"a target elsewhere":          {[]string{"--target", "a:1"}, `--target "a:1": would be dialled in plaintext`},
		"an origin with a path":       {append(ok, "--cors-origins", "https://a.example/"), "--cors-origins"},
		"an origin without a scheme":  {append(ok, "--cors-origins", "a.example"), "--cors-origins"},
		"a small body":                {append(ok, "--max-body-bytes", "1000"), "--max-body-bytes"},
		"a body above the contract's": {append(ok, "--max-body-bytes", "16777217"), "--max-body-bytes"},
		"one body":                    {append(ok, "--max-held-bytes", "16777216"), "--max-held-bytes"},
		"no connection":               {append(ok, "--max-connections", "0"), "--max-connections"},
		"a drain of two hours":        {append(ok, "--drain-timeout", "2h"), "--drain-timeout"},
		"a listen without port":       {append(ok, "--listen", "a"), "--listen"},
		"all networks in plaintext":   {append(ok, "--listen", ":8080"), `--listen ":8080": would serve other machines in plaintext`},
		"one port for two":            {append(ok, "--metrics-listen", "127.0.0.1:8080"), "--metrics-listen"},
		"a short stall":               {append(ok, "--send-stall", "1ms"), "--send-stall"},
	} {
		t.Run(name, func(t *testing.T) {
			err := parse(t, tc.args...).Validate()
			require.ErrorIs(t, err, app.ErrUsage)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestTokensStayOnThisMachineInPlaintext(t *testing.T) {
	require.False(t, parse(t, "--target", "127.0.0.1:7070,unix:/run/millrace").HidesTokens())
	require.True(t, parse(t, "--target", "127.0.0.1:7070,scheduler:7070", "--insecure").HidesTokens())
	require.False(t, parse(t, "--target", "scheduler:7070", "--tls-ca", "system").HidesTokens())
}

func TestResumeKeyIsLongEnough(t *testing.T) {
	key, err := parse(t).ResumeKey()
	require.NoError(t, err)
	require.Nil(t, key)
	path := filepath.Join(t.TempDir(), "key")
	for text, want := range map[string]string{
		strings.Repeat("k", 32) + "\n": "", "short": "must have 32 to 4096 bytes", strings.Repeat(" ", 40): "must have 32", strings.Repeat("k", 4097): "must have 32",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		key, err := parse(t, "--resume-key-file", path).ResumeKey()
		if want == "" {
			require.NoError(t, err)
			require.Len(t, key, 32)
			continue
		}
		require.ErrorContains(t, err, want)
	}
	_, err = parse(t, "--resume-key-file", path+"-none").ResumeKey()
	require.ErrorContains(t, err, "--resume-key-file")
}
