"""What pictures say in Chinese: each finding, hazard and headline has its sentence, beside the English one."""

import re
import warnings
from typing import get_args

import factory
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import loaderviz as lv
from loaderviz import metrics
from loaderviz.analysis import Finding, FindingKind, Gain
from loaderviz.emulator.hazards import texts as reports
from loaderviz.timeline import Cause, Kind, Mark
from loaderviz.view import spoken
from loaderviz.view.picture import View

HAZARDS = {case.partition(" of ")[0] for case, text in reports().items() if "edge" in text}
WORDS = re.compile("[A-Za-z]+")


@pytest.fixture
def chinese(monkeypatch):
    monkeypatch.setenv("LOADERVIZ_LANGUAGE", "zh")


def loop():
    """Two batches: each is copied, and then computed; in the second step of four the GPU is idle."""
    return factory.made(
        ("main", 0, 400, Kind.OPERATOR), ("stream 7", 0, 100, Kind.COPY_H2D), ("stream 7", 100, 200, Kind.COMPUTE)
    )


def test_each_kind_of_finding_and_of_hazard_has_a_sentence():
    assert set(spoken.texts()["findings"]) == set(get_args(FindingKind))
    assert set(spoken.texts()["hazards"]) == HAZARDS and len(HAZARDS) == 4
    for section in ("findings", "hazards"):
        for key, each in spoken.texts()[section].items():
            assert "。" in each["zh"] + "。" and re.search("[\u4e00-\u9fff]", each["zh"]), key


def test_a_picture_in_english_is_as_it_was():
    assert spoken.headline(loop()) == metrics.describe(loop())
    assert spoken.finding(Finding("resident", "seen", "change", Gain(0, 0.0, None)), 1) == {}
    assert spoken.hazard(Mark(0, 0, "early-read", "it is read")) is None


@pytest.mark.parametrize("language", ["", "xx", "../zh", "ZH", "zh "])
def test_what_is_no_language_is_english(monkeypatch, language):
    monkeypatch.setenv("LOADERVIZ_LANGUAGE", language)
    assert View({"a": loop()}).heading == metrics.describe(loop())


def test_the_headline_has_the_numbers_of_the_english_one(chinese):
    timeline = loop()
    told = View({"a": timeline}).heading
    assert re.findall(r"\d+", told) == re.findall(r"\d+", metrics.describe(timeline)) and "隐藏" in told
    assert set(WORDS.findall(told)) == {"GPU"}


def test_without_work_of_the_gpu_and_without_anything(chinese):
    host = factory.made(("main", 0, 4000, Kind.OPERATOR))
    assert spoken.headline(host) == "主机用了 4 µs，GPU 没有工作"
    memset = factory.made(*factory.us([("main", 0, 4, Kind.API), ("stream 7", 1, 2, Kind.MEMSET)]))
    assert spoken.headline(memset) == "主机用了 4 µs，GPU 没有核函数，也没有复制，只有 1 µs 的其他工作"
    assert spoken.headline(factory.made()) == "空的时间线：什么也没有录制"


def test_a_comparison_says_which_is_faster(chinese):
    told = lv.compare({"one": factory.loader("blocking"), "two": factory.loader("prefetch")}).heading
    assert "one" in told and "two" in told and set(WORDS.findall(told)) <= {"one", "two", "GPU"}


@pytest.mark.parametrize(
    ("gain", "said"),
    [
        (Gain(5_000_000, 0.25, 250_000.0), "：每步最多可省 250 µs（25 %）"),
        (Gain(5_000_000, 0.25, None), "：最多可省 5 ms（25 %）"),
        (Gain(0, 0.0, None, once=True), "：只付一次"),
        (Gain(0, 0.0, None), ""),
    ],
)
def test_a_finding_keeps_its_kind_its_gain_and_its_code(chinese, gain, said):
    change = "# no such call\nloader = DataLoader(..., num_workers=4)"
    told = spoken.finding(Finding("fetch-in-loop", "the main thread fetches", change, gain), 2)
    assert told["title"] == f"由循环自己取数（fetch-in-loop）{said}"
    assert "图中标出了 2 处" in told["text"] and told["change"] == "loader = DataLoader(..., num_workers=4)"


@pytest.mark.parametrize(
    ("english", "said"),
    [
        ("side stream 13", "侧流 13"),
        ("batch 7: 1,024 samples", "批次 7：1,024 个样本"),
        ("GPU idle", "GPU 空闲"),
        ("", ""),
        ("no such text of 3 words", "no such text of 3 words"),
        ("# of 2", "# of 2"),
        ("findings", "findings"),  # a section of the table, and no text
    ],
)
def test_a_word_of_a_still_picture_is_in_the_readers_language_or_stays(chinese, monkeypatch, english, said):
    assert spoken.word(english) == said
    monkeypatch.setenv("LOADERVIZ_LANGUAGE", "en")
    assert spoken.word(english) == english


def test_a_hazard_in_a_picture_is_told(chinese):
    problem, missing = spoken.hazard(Mark(0, 0, "early-refill", "the host writes; missing: a wait"))
    assert problem.endswith("。") and "主机过早地改写" in problem and "事件" in missing
    assert spoken.hazard(Mark(0, 0, "of another program", "text")) is None


def without_names(text):
    """Return what a reader would have to translate: identifiers and units are none of it."""
    return re.sub(r"\b(GPU|CUDA|GIL|rank|recording\.unpriced|[GMk]?B/s|[nµm]?s)\b", "", text)


def test_a_summary_and_the_sentences_beside_a_picture_have_no_english(chinese):
    """Of a recording with hazards, of one with none, of several GPUs, and of one without."""
    with warnings.catch_warnings(action="ignore"), lv.record(on="laptop", host="laptop") as racing:
        side, values = torch.cuda.Stream(), torch.ones(1000, 1000).pin_memory()
        with torch.cuda.stream(side):
            there = values.to("cuda", non_blocking=True)
        there.sum().item()
    with lv.record(on="laptop", host="laptop") as blocking:
        for x, y in DataLoader(TensorDataset(torch.rand(512, 784), torch.arange(512)), 64):
            x.to("cuda").sum().item(), y.to("cuda")
    with lv.record(on="cpu") as alone:
        sum(len(x) for x in DataLoader(torch.rand(512, 784), 64))
    ranks = factory.made(
        ("main", 0, 400, Kind.OPERATOR), ("stream 7", 0, 100, Kind.COMPUTE), ("stream 7", 100, 300, Kind.COMMUNICATION)
    )
    for timeline in (racing.timeline, blocking.timeline, alone.timeline, loop(), ranks, factory.made()):
        for told in (repr(lv.summarize(timeline)), View({"a": timeline}).text(), timeline.view().text()):
            assert re.search("[\u4e00-\u9fff]", told)
            assert not re.search("[A-Za-z]{2,}[ ,]+[A-Za-z]{2,}", without_names(told)), told
    assert "隐患 1 个，第一个：有一个流过早地读取" in racing.timeline.view().text()
    assert "到 GPU 的复制速率，可分页内存" in repr(lv.summarize(blocking.timeline))


def test_each_line_of_a_summary_is_in_the_table():
    told = [*(cause.words for cause in list(Cause)[1:]), *": ".join(metrics._HOST_WORK).split(": ")]
    assert {*told} <= metrics._texts()["zh"].keys()
