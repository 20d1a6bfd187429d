package version

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLinkerVersionWins(t *testing.T) {
	t.Cleanup(func() { Version = "" })
	Version = "v9.8.7"
	require.Equal(t, "v9.8.7", String())
	Version = ""
	require.NotEmpty(t, String())
}

func TestBuildInfoIsTheFallback(t *testing.T) {
	revision := []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef0123"}, {Key: "vcs.modified", Value: "true"},
	}
	for name, tc := range map[string]struct {
		info debug.BuildInfo
		want string
	}{
		"a module version is taken as it is":          {debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}}, "v1.2.3"},
		"a revision is shortened and marked as dirty": {debug.BuildInfo{Settings: revision}, "devel-0123456789ab+dirty"},
		"nothing known is devel":                      {debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "devel"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, fromBuildInfo(&tc.info)) })
	}
}
