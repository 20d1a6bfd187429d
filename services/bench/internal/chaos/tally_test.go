package chaos

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestResumesAreAddedUpOverLinesHoweverTheyAreWritten(t *testing.T) {
	var all tally
	one, other := all.log(), all.log()
	for _, part := range []string{"{\"@message\":\"finished call\",\"resumes\":2}\n{\"resu", "mes\":3}\n", "panic: no JSON\n\n", "{\"tokens\":9}\n{\"resumes\":50}"} {
		n, err := one.Write([]byte(part))
		require.NoError(t, err)
		require.Equal(t, len(part), n)
	}
	require.EqualValues(t, 5, all.count(), "a line without an end is not one yet")
	_, err := other.Write([]byte("{\"resumes\":1}\n"))
	require.NoError(t, err)
	require.EqualValues(t, 6, all.count())
}
