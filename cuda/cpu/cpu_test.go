package cpu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/cuda/cpu"
)

func TestTheTableIsTheSameForEveryCaller(t *testing.T) {
	first := cpu.Table()
	require.NotNil(t, first)
	require.Equal(t, first, cpu.Table())
}
