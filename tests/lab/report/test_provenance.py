"""How the numbers of a page came about, said once."""


def test_settings_are_said_once_where_methods_agree(written):
    text = written.read_text(encoding="utf-8")
    assert text.count("<code>epochs = 20</code>") == 1
    assert text.count("<code>strength = 10.0</code>") == 1
    assert "<dt>torch</dt><dd>2.13.0</dd>" in text
    assert "<dt>git commit</dt><dd>0123456789ab</dd>" in text
