package render_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/millrace/internal/render"
)

var (
	fitHead = []string{"NAME", "LOAD", "MODELS"}
	fitRows = [][]string{{"w1", "17 %", "stories, chatty"}, {"w2", "", "stories"}}
)

func TestFitDropsColumnsInOrder(t *testing.T) {
	whole, hidden := render.Fit(fitHead, fitRows, 0, "LOAD")
	require.Equal(t, render.Table(fitHead, fitRows), whole)
	require.Empty(t, hidden)

	same, hidden := render.Fit(fitHead, fitRows, render.Width(fitHead, fitRows), "LOAD")
	require.Equal(t, whole, same)
	require.Empty(t, hidden)

	less, hidden := render.Fit(fitHead, fitRows, 22, "NONE", "LOAD")
	require.Equal(t, "NAME  MODELS\nw1    stories, chatty\nw2    stories\n", less)
	require.Equal(t, []string{"LOAD"}, hidden)

	cut, hidden := render.Fit(fitHead, fitRows, 14, "LOAD")
	require.Equal(t, "NAME  MODELS\nw1    stori...\nw2    stories\n", cut)
	require.Equal(t, []string{"LOAD"}, hidden)
}

func TestStackRepeatsTheFirstColumn(t *testing.T) {
	require.Equal(t, render.Table(fitHead, fitRows), render.Stack(fitHead, fitRows, 0))
	require.Equal(t, "NAME  LOAD\nw1    17 %\nw2    -\n\nNAME  MODELS\nw1    stories, chatty\nw2    stories\n", render.Stack(fitHead, fitRows, 21))
}
