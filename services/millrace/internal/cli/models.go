package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/render"
	"github.com/millrace/millrace/services/millrace/internal/session"
)

// models lists the loaded models and the files that can be loaded.
func (a *app) models() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use: "models", Short: "List the models loaded and the model files that could be", Args: cobra.NoArgs,
		Long: "Lists the models loaded and the model files that could be. TYPES are those of the weights, the most used first; WINDOW is\n" +
			"how many positions the layers with a sliding window see. LAST USE is how long ago the last request of a loaded model ended,\n" +
			"\"now\" while one runs, and whether it is pinned: then it stays also where workers unload idle models. A file that no worker\n" +
			"can load is unusable, and a line below the table says what is missing.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			conn, hangUp, err := a.dial()
			if err != nil {
				return err
			}
			defer hangUp()
			ctx, cancel := a.deadline(cmd.Context(), unaryTimeout)
			defer cancel()
			out, err := pb.NewModelServiceClient(conn).ListModels(ctx, &pb.ListModelsRequest{})
			switch {
			case err != nil:
				return failure.OfCall(err, "", nil)
			case asJSON:
				return session.PrintJSON(a.Out, out)
			case len(out.GetModels()) == 0:
				fmt.Fprintln(a.Err, "no models: put NAME.gguf files into the folder that workers get with --models")
				return nil
			}
			fmt.Fprint(a.Out, modelTable(out.GetModels()))
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the answer as JSON")
	return cmd
}

// modelTable is one row a model and state, and below it why some cannot be used, how others recommend to sample and which named
// chat templates they have.
func modelTable(models []*pb.ModelInfo) string {
	var rows [][]string
	problems := ""
	for _, m := range models {
		c := m.GetCapabilities()
		row := []string{
			m.GetName(), modelState(m.GetState()), c.GetArchitecture(), c.GetQuantisation(), strings.Join(c.GetWeightTypes(), " "), "", "", "",
			render.Bytes(m.GetFileBytes()), render.ShortDigest(m.GetModelDigest()), lastUse(m), strings.Join(m.GetWorkerIds(), " "),
		}
		if c != nil {
			row[5], row[6] = render.Count(c.GetParameters()), fmt.Sprint(c.GetContextLength())
		}
		if w := c.GetSlidingWindow(); w > 0 {
			row[7] = fmt.Sprint(w)
		}
		if l := m.GetLoaded(); l.GetContextLength() > 0 {
			row[6] = fmt.Sprint(l.GetContextLength())
		}
		if m.GetProblem() != "" {
			if m.GetState() == pb.ModelState_MODEL_STATE_ON_DISK {
				row[1] = "unusable"
			}
			problems += render.Line(fmt.Sprintf("%s: %s", m.GetName(), m.GetProblem())) + "\n"
		}
		problems += recommended(m) + purpose(m)
		if names := c.GetChatTemplates(); len(names) > 0 {
			problems += render.Line(fmt.Sprintf("%s: chat templates for --template: %s", m.GetName(), strings.Join(names, ", "))) + "\n"
		}
		rows = append(rows, row)
	}
	return render.Table([]string{"NAME", "STATE", "ARCH", "QUANT", "TYPES", "PARAMS", "CONTEXT", "WINDOW", "SIZE", "DIGEST", "LAST USE", "WORKERS"}, rows) + problems
}

// purpose is a line on a model that is made for vectors or scores, nothing for others.
func purpose(m *pb.ModelInfo) string {
	c := m.GetCapabilities()
	switch {
	case c.GetRerankOnly():
		return render.Line(m.GetName()+": a reranker; millrace rerank uses it") + "\n"
	case c.GetPooling() != pb.Pooling_POOLING_UNSPECIFIED:
		pooling := strings.ToLower(strings.TrimPrefix(c.GetPooling().String(), "POOLING_"))
		return render.Line(fmt.Sprintf("%s: makes vectors of %d, pooling %s; millrace embed uses it", m.GetName(), c.GetEmbeddingWidth(), pooling)) + "\n"
	}
	return ""
}

// recommended is a line with the flags by which a model's file recommends to sample, nothing where it recommends none.
func recommended(m *pb.ModelInfo) string {
	s := m.GetCapabilities().GetSampling()
	if s == nil {
		return ""
	}
	var flags strings.Builder
	add := func(set bool, flag string, value any) {
		if set {
			fmt.Fprintf(&flags, " --%s %v", flag, value)
		}
	}
	add(s.Temperature != nil, "temperature", s.GetTemperature())
	add(s.TopK != nil, "top-k", s.GetTopK())
	add(s.TopP != nil, "top-p", s.GetTopP())
	add(s.MinP != nil, "min-p", s.GetMinP())
	add(s.RepetitionPenalty != nil, "repetition-penalty", s.GetRepetitionPenalty())
	add(s.PenaltyWindow != nil, "penalty-window", s.GetPenaltyWindow())
	if flags.Len() == 0 {
		return ""
	}
	what := "its file recommends" + flags.String()
	if m.GetLoaded().GetSamplingDefaults() {
		what = "unset knobs have" + flags.String() + ", as its file recommends"
	}
	return render.Line(m.GetName()+": "+what) + "\n"
}

// lastUse is how long ago a model's last request ended, and whether it stays without any; nothing where that is not known.
func lastUse(m *pb.ModelInfo) string {
	text := "now"
	switch age := m.GetIdleAge(); {
	case age == nil:
		return ""
	case age.AsDuration() > 0:
		text = render.Age(age.AsDuration())
	}
	switch n := len(m.GetPinnedWorkerIds()); {
	case n == 0:
		return text
	case n < len(m.GetWorkerIds()):
		return text + ", pinned on " + strings.Join(m.GetPinnedWorkerIds(), " ")
	}
	return text + ", pinned"
}

func modelState(s pb.ModelState) string {
	return render.Readable(s.String(), "MODEL_STATE_")
}
