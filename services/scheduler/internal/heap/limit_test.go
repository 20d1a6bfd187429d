package heap

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSmallestLimitApplies(t *testing.T) {
	dir := t.TempDir()
	file := func(text string) string {
		path := filepath.Join(dir, "of "+text)
		require.NoError(t, os.WriteFile(path, []byte(text+"\n"), 0o600))
		return path
	}
	none, absent := uint64(math.MaxUint64), filepath.Join(dir, "absent")
	for name, tc := range map[string]struct {
		files []string
		data  uint64
		want  int64
	}{
		"none":                     {nil, none, math.MaxInt64},
		"no such file":             {[]string{absent}, none, math.MaxInt64},
		"the second version":       {[]string{file("2147483648"), absent}, none, 2 << 30},
		"without a bound":          {[]string{file("max")}, none, math.MaxInt64},
		"the first version's none": {[]string{file("9223372036854771712")}, none, math.MaxInt64},
		"of data":                  {[]string{file("max")}, 1 << 30, 1 << 30},
		"the least of both":        {[]string{file("4096")}, 1 << 30, 4096},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, allowed(tc.files, tc.data)) })
	}
}
