package faults

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestResumeLogAddsUpLines(t *testing.T) {
	var all resumeLog
	one, other := all.writer(), all.writer()
	for _, part := range []string{"{\"@message\":\"finished call\",\"resumes\":2}\n{\"resu", "mes\":3}\n", "panic: no JSON\n\n", "{\"tokens\":9}\n{\"resumes\":50}"} {
		n, err := one.Write([]byte(part))
		require.NoError(t, err)
		require.Equal(t, len(part), n)
	}
	require.EqualValues(t, 5, all.count(), "a line without its end does not count yet")
	_, err := other.Write([]byte("{\"resumes\":1}\n"))
	require.NoError(t, err)
	require.EqualValues(t, 6, all.count())
}
