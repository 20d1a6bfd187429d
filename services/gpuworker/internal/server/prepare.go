package server

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/generate"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/prompt"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// prepare translates a checked request into one of package generate, for one model.
func (s *Server) prepare(ctx context.Context, in *pb.GenerateRequest, inst *model.Instance) (generate.Request, error) {
	if err := expect(inst, in.ExpectModelDigest, in.ExpectClassId); err != nil {
		return generate.Request{}, err
	}
	if err := invalid(checkAgainst(in, inst)); err != nil {
		return generate.Request{}, err
	}
	options, input := optionsOf(in, inst.Defaults), inputOf(in)
	if err := s.constrain(ctx, in, inst, &input, &options); err != nil {
		return generate.Request{}, err
	}
	r, err := prompt.Build(ctx, s.encoder, offerOf(inst), input, options)
	if err != nil {
		return generate.Request{}, err
	}
	if want := in.ExpectPromptDigest; want != nil && *want != r.Digest {
		return generate.Request{}, fmt.Errorf("%w: the prompt's digest is %s, expected %s", errExpectation, r.Digest, *want)
	}
	r.ID = rpc.RequestID(ctx)
	r.Schedule.Keys = prefixKeys(in, len(r.Prompt))
	return r, nil
}

// expect refuses a request that expects another model or class.
func expect(inst *model.Instance, digest, class *string) error {
	if digest != nil && *digest != hex.EncodeToString(inst.Digest[:]) {
		return fmt.Errorf("%w: %q is loaded with %x, expected %s", model.ErrDigest, inst.Name, inst.Digest, *digest)
	}
	if class != nil && *class != inst.ClassID {
		return fmt.Errorf("%w: its class is %s, expected %s", errExpectation, inst.ClassID, *class)
	}
	return nil
}

// offerOf returns the parts of a loaded model that prompts are built with.
func offerOf(inst *model.Instance) prompt.Model {
	m := prompt.Model{
		Name: inst.Name, Tokenizer: inst.Tokenizer, TemplateProblem: inst.TemplateProblem,
		BOS: inst.Facts.BOS, EOS: inst.Facts.EOS, EndIDs: inst.Facts.EndIDs,
		SuppressedIDs: inst.Facts.SuppressedIDs, Vocabulary: inst.Facts.Vocabulary, Context: inst.Context, Loop: inst.Loop,
	}
	m.Named = make(map[string]prompt.Named, len(inst.Named))
	for name, t := range inst.Named {
		named := prompt.Named{Problem: t.Problem}
		if t.Template != nil {
			named.Template = t.Template
		}
		m.Named[name] = named
	}
	if inst.Template != nil { // an interface that holds a nil pointer is not nil
		m.Template = inst.Template
	}
	return m
}

// inputOf returns the request's token ids, chat or text.
func inputOf(in *pb.GenerateRequest) prompt.Input {
	switch input := in.GetInput().(type) {
	case *pb.GenerateRequest_TokenIds:
		return prompt.Input{IDs: tokens(input.TokenIds.GetIds())}
	case *pb.GenerateRequest_Chat:
		at := time.Now()
		if in.AcceptedAt != nil {
			at = in.GetAcceptedAt().AsTime()
		}
		return prompt.Input{Chat: chatOf(input.Chat, at)}
	default:
		return prompt.Input{Text: in.GetPrompt()}
	}
}

func chatOf(in *pb.Chat, now time.Time) *prompt.Chat {
	chat := &prompt.Chat{
		AddGenerationPrompt: orDefault(in.AddGenerationPrompt, true), Now: now,
		Template: in.GetTemplateName(), ParseSpecial: in.GetParseSpecialInContent(),
	}
	if args := in.GetTemplateKwargs(); args != nil {
		chat.Variables = args.AsMap()
	}
	chat.Messages, chat.Tools = messagesOf(in), templateTools(in.GetTools())
	return chat
}

// defaultsOf returns the values of unset fields: the contract's defaults, replaced by those that
// the model's file recommends. s is nil if the worker does not follow the file.
func defaultsOf(s *model.Sampling) prompt.Options {
	o := prompt.Defaults()
	if s != nil {
		set(&o.Temperature, s.Temperature)
		set(&o.TopK, s.TopK)
		set(&o.TopP, s.TopP)
		set(&o.MinP, s.MinP)
		set(&o.RepetitionPenalty, s.RepetitionPenalty)
		set(&o.PenaltyWindow, s.PenaltyWindow)
	}
	return o
}

// optionsOf returns the options of a request, over the defaults.
func optionsOf(in *pb.GenerateRequest, defaults *model.Sampling) prompt.Options {
	o := defaultsOf(defaults)
	if s := in.GetSampling(); s != nil {
		set(&o.Temperature, s.Temperature)
		set(&o.TopK, s.TopK)
		set(&o.TopP, s.TopP)
		set(&o.MinP, s.MinP)
		set(&o.TypicalP, s.TypicalP)
		set(&o.RepetitionPenalty, s.RepetitionPenalty)
		set(&o.PresencePenalty, s.PresencePenalty)
		set(&o.FrequencyPenalty, s.FrequencyPenalty)
		set(&o.PenaltyWindow, s.PenaltyWindow)
		o.Sequences = int(orDefault(s.NumSequences, int32(o.Sequences)))
		o.Bias, o.Allowed, o.Seed = s.GetLogitBias(), tokens(s.GetAllowedTokens().GetIds()), s.Seed
	}
	if s := in.GetStopping(); s != nil {
		o.MaxTokens = int(orDefault(s.MaxTokens, int32(o.MaxTokens)))
		o.MinTokens, o.Stop, o.StopIDs = s.GetMinTokens(), s.GetStop(), tokens(s.GetStopTokenIds())
		o.IncludeStop, o.IgnoreEnds = s.GetIncludeStopInOutput(), s.GetIgnoreEos()
	}
	o.Context = int(in.GetContextLength())
	if r := in.GetResponse(); r != nil {
		o.PromptTopN = int(orDefault(r.PromptLogprobs, int32(o.PromptTopN)))
		o.Candidates, o.NoText, o.Progress = r.GetOutputCandidates(), r.GetTokenIdsOnly(), r.GetProgress()
		o.Logprobs = r.GetOutputLogprobs()
	}
	if in.GetPromptClass() == pb.KernelClass_KERNEL_CLASS_DECODE {
		o.Class = engine.Decode
	}
	o.Schedule = generate.Schedule{
		Priority: in.GetPriority(), Tenant: in.GetFairnessId(),
		Salt: in.GetCache().GetSalt(), Bypass: in.GetCache().GetBypassPrefixCache(),
	}
	for _, r := range in.GetResume() {
		o.Resume = append(o.Resume, generate.Resume{
			OutputIndex: int(r.GetOutputIndex()), IDs: tokens(r.GetTokenIds()), Finished: r.GetFinished(), TextBytes: r.TextBytes,
		})
	}
	return o
}

// set sets an option to the value of an optional field, if the field is set.
func set[T any](option *T, v *T) { *option = orDefault(v, *option) }

// orDefault returns the value of an optional field, or unset.
func orDefault[T any](v *T, unset T) T {
	if v == nil {
		return unset
	}
	return *v
}

// tokens converts ids to the library's type. It returns nil for none.
func tokens(ids []uint32) []int32 {
	if len(ids) == 0 {
		return nil
	}
	out := make([]int32, len(ids))
	for i, id := range ids {
		out[i] = int32(id)
	}
	return out
}
