package auth

import (
	"fmt"
	"os"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
)

func TestTokenFromAPipeIsReadOnce(t *testing.T) {
	for name, tc := range map[string]struct{ text, wrong string }{
		"a token": {NewToken(), ""},
		"nothing": {"", "want 32 to 4096"},
	} {
		t.Run(name, func(t *testing.T) {
			out, in, err := os.Pipe()
			require.NoError(t, err)
			defer func() { require.NoError(t, out.Close()) }()
			_, err = in.WriteString(tc.text + "\n")
			require.NoError(t, err)
			require.NoError(t, in.Close())
			token, err := (&Flags{TokenFile: fmt.Sprintf("/dev/fd/%d", out.Fd())}).tokens(hclog.NewNullLogger())
			if tc.wrong != "" {
				require.ErrorContains(t, err, tc.wrong)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.text, token())
		})
	}
}
