// Package score computes the perplexity of a text: which predictions count, and their mean.
//
// Windows cuts the text's tokens into windows of N, the first token of each replaced by the model's BOS token. In each
// window the predictions made at positions N/2 to the last but one count, so that each has at least N/2 tokens before
// it; they are the logprobs of the window's tokens from index N/2+1 on. A last window shorter than N/2+2 tokens has no
// such prediction and is left out. Sum adds up the logprobs of one window, Mean those of all in the order of the text,
// so that the result does not depend on the order of arrival.
//
// It is arithmetic: it makes no call and reads no file.
package score
